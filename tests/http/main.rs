//! The HTTP interface on a scripted model, with the shipped components: what
//! is answered, what is refused, and that nothing is silently ignored.
#![allow(clippy::expect_used, clippy::unwrap_used, unreachable_pub)]

mod access;
mod answers;
mod cancellation;
mod cases;
mod dialects;
mod leaving;
mod limits;
mod logprobs;
mod metrics;
mod openapi;
mod pieces;
mod plugins;
mod refusals;
mod server;
mod slow;
mod stopping;
mod tools;
