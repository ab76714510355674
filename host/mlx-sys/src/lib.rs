//! Raw bindings to mlx-c, and [`sluice_host_op`], an MLX operation whose kernel
//! is a function of the host.
//!
//! Takes the place of the published `mlx-sys`, which mlx-rs asks for and which
//! builds only on Apple systems: see `build.rs`.
//!
//! `bindings.rs` is generated. With the headers of the `mlx-sys` 0.7.0 crate
//! (`src/mlx-c`) as the include path:
//!
//! ```text
//! bindgen mlx/c/mlx.h --rust-target 1.73.0 --with-derive-default \
//!   --with-derive-eq --with-derive-hash --allowlist-item '_?mlx_.*' \
//!   --blocklist-type 'FILE|_IO_FILE|__sFILE' --blocklist-type '.*float16_t' \
//!   --blocklist-item 'mlx_array_(item|data)_b?float16' \
//!   --raw-line 'pub type FILE = ::std::os::raw::c_void;' \
//!   --output src/bindings.rs -- -I.
//! ```
#![allow(unsafe_code, clippy::all, clippy::pedantic, unreachable_pub)]
#![allow(non_upper_case_globals, non_camel_case_types, non_snake_case)]

use std::os::raw::{c_int, c_void};

include!("bindings.rs");

/// An IEEE half float, as its bits.
#[repr(transparent)]
#[derive(Debug, Default, Clone, Copy)]
pub struct float16_t(pub u16);

/// A bfloat16, as its bits.
pub type bfloat16_t = u16;

/// The kernel of a host operation: context, inputs, their numbers of elements,
/// how many inputs, output, its number of elements.
pub type sluice_kernel =
    unsafe extern "C" fn(*mut c_void, *const *const f32, *const usize, usize, *mut f32, usize);

unsafe extern "C" {
    pub fn mlx_array_item_float16(res: *mut float16_t, arr: mlx_array) -> c_int;
    pub fn mlx_array_item_bfloat16(res: *mut bfloat16_t, arr: mlx_array) -> c_int;
    pub fn mlx_array_data_float16(arr: mlx_array) -> *const float16_t;
    pub fn mlx_array_data_bfloat16(arr: mlx_array) -> *const bfloat16_t;

    /// Makes a lazy f32 array of `shape` that `kernel` computes from `inputs`
    /// (f32) on `stream`, which must be a CPU stream. Takes `context` in every
    /// case and gives it to `drop` once, on any thread, when it is not needed
    /// any more. Returns 0, or 1 if the stream is not the CPU's, 2 if an input is
    /// not f32, 3 if memory ran out.
    pub fn sluice_host_op(
        res: *mut mlx_array,
        shape: *const c_int,
        n_dimensions: usize,
        inputs: mlx_vector_array,
        kernel: sluice_kernel,
        context: *mut c_void,
        drop: unsafe extern "C" fn(*mut c_void),
        stream: mlx_stream,
    ) -> c_int;
}
