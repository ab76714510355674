//! Sluice: text generation on MLX in which WebAssembly components choose every
//! token. Modules stand in pipeline order.

pub mod assemble;
pub mod author;
pub mod bench;
pub mod config;
pub mod engine;
pub mod http;
pub mod mlx;
pub mod perplexity;
pub mod plugin;
pub mod progress;
pub mod serve;
pub mod telemetry;
pub mod text;
