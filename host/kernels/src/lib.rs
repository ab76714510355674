//! The arithmetic of Sluice's CPU path.
//!
//! ```text
//! matmul_nt ─┬─ matmul ──────────┐
//! quantised ─┘                   │
//! ops        norm, SwiGLU, rope  ├─ pool (threads)
//! attention  KV cache, attention ┘
//! row        passes over one logits row, loan lends one
//!            └── all on simd: AVX-512, AVX2, NEON or plain, chosen at run time
//! ```
//!
//! Two promises hold for everything here:
//! - *The bits of a row depend on nothing but the row.* Batch size, place in
//!   the batch, chunking of a prompt and number of threads change nothing: each
//!   sum has one order. (Another instruction set has another order.)
//! - *No size is special.* Shapes of one model are fast, all shapes are right.
//!
//! What must stay absent: dependencies on MLX, on the engine, on plugins;
//! arithmetic in anything but f32.

// Vector instructions, tiles of matrices and helper threads that borrow the
// caller's stack need it; every block says why it is sound.
#![allow(unsafe_code)]
// Only inlined code has the vector instructions enabled (see `simd`).
#![allow(clippy::inline_always)]
// m, n and k are what everyone calls the sides of a product.
#![allow(clippy::many_single_char_names)]
// A lane, row or column is an index into several arrays at once.
#![allow(clippy::needless_range_loop)]
// All of `std::arch` carries its instruction set in its name.
#![allow(clippy::wildcard_imports)]
// Tests compare bits, or numbers that are exact.
#![cfg_attr(test, allow(clippy::float_cmp))]

pub mod attention;
mod buffer;
mod loan;
mod matmul;
pub mod ops;
pub mod pages;
pub mod pool;
mod quantised;
pub mod row;
mod simd;
#[cfg(test)]
mod testing;

pub use loan::Loan;
pub use matmul::{logits_nt, matmul_nt};
pub use quantised::{Format, Quantised};
