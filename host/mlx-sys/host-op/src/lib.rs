//! MLX operations whose kernel is a Rust closure: lazy and asynchronous like
//! every other operation, and run in order on MLX's stream.
//!
//! ```
//! use mlx_host_op::host_op;
//! use mlx_rs::{Array, Stream};
//!
//! let x = Array::from_slice(&[1.0_f32, 2.0, 3.0], &[3]);
//! let doubled = host_op(&[3], &[&x], &Stream::cpu(), |inputs, output| {
//!     for (to, from) in output.iter_mut().zip(inputs[0]) {
//!         *to = 2.0 * from;
//!     }
//! })?;
//! assert_eq!(doubled.as_slice::<f32>(), [2.0, 4.0, 6.0]);
//! # Ok::<(), mlx_rs::error::Exception>(())
//! ```
//!
//! A crate of its own because `mlx-rs` depends on `mlx-sys`, and because it
//! holds the `unsafe` that such an operation needs.
#![allow(unsafe_code)] // each block says why it is sound

use std::{
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
    slice,
};

use mlx_rs::{Array, Stream, error::Exception};

/// Computes the output, given in row-major order and not initialised to
/// anything useful, from the inputs, row-major too. Called once, or again if
/// MLX computes the array again.
type Kernel = dyn Fn(&[&[f32]], &mut [f32]) + Send + Sync;

/// Makes the array of `shape` that `kernel` computes from `inputs`, all f32.
/// Nothing runs before the array is evaluated; the kernel then runs on the
/// thread of `stream`, which must be a CPU stream.
///
/// A kernel that panics leaves an output of NaN: the panic cannot cross MLX.
///
/// # Errors
/// When an input is not f32 or `stream` does not belong to the CPU.
pub fn host_op(
    shape: &[i32],
    inputs: &[&Array],
    stream: &Stream,
    kernel: impl Fn(&[&[f32]], &mut [f32]) + Send + Sync + 'static,
) -> Result<Array, Exception> {
    if shape.iter().any(|&length| length < 0) {
        return Err(Exception::custom(format!(
            "negative length in shape {shape:?}"
        )));
    }
    let kernel: Box<Box<Kernel>> = Box::new(Box::new(kernel));
    let placeholder = Array::from_f32(0.0);
    let mut result = placeholder.as_ptr();
    // SAFETY: `v` is a fresh vector that is freed below; the handles appended
    // to it are alive, for `inputs` borrows their arrays, and it copies them.
    let (status, v) = unsafe {
        let v = mlx_sys::mlx_vector_array_new();
        for input in inputs {
            mlx_sys::mlx_vector_array_append_value(v, input.as_ptr());
        }
        // `result` names the array of `placeholder`, which this replaces in
        // place. The context is a `Box<Box<Kernel>>`, what `call` and `release`
        // take it for, and its kernel is `Send + Sync`.
        let status = mlx_sys::sluice_host_op(
            &raw mut result,
            shape.as_ptr(),
            shape.len(),
            v,
            call,
            Box::into_raw(kernel).cast::<c_void>(),
            release,
            stream.as_ptr(),
        );
        (status, v)
    };
    // SAFETY: made above and not used again.
    unsafe { mlx_sys::mlx_vector_array_free(v) };
    match status {
        0 => Ok(placeholder),
        1 => Err(Exception::custom("a host operation runs on the CPU only")),
        2 => Err(Exception::custom(
            "the inputs of a host operation must be f32",
        )),
        _ => Err(Exception::custom("no memory for a host operation")),
    }
}

unsafe extern "C" fn call(
    context: *mut c_void,
    inputs: *const *const f32,
    sizes: *const usize,
    n_inputs: usize,
    output: *mut f32,
    output_size: usize,
) {
    // SAFETY: `host_op` made the context, and the operation owns it while it
    // runs.
    let kernel = unsafe { &*context.cast::<Box<Kernel>>() };
    // SAFETY: MLX gives `n_inputs` pointers and sizes. Each names the elements
    // of an evaluated, row-contiguous f32 array that nothing writes to while
    // operations that read it are pending.
    let arrays: Vec<&[f32]> = unsafe {
        (0..n_inputs)
            .map(|i| raw_slice(*inputs.add(i), *sizes.add(i)))
            .collect()
    };
    let output: &mut [f32] = if output_size == 0 {
        &mut []
    } else {
        // SAFETY: the output was allocated for `output_size` elements by this
        // operation and nobody else sees it before the operation ends. Every
        // bit pattern is an f32; MLX's allocator hands out memory that was
        // written before or that the system cleared.
        unsafe { slice::from_raw_parts_mut(output, output_size) }
    };
    if catch_unwind(AssertUnwindSafe(|| kernel(&arrays, output))).is_err() {
        output.fill(f32::NAN);
    }
}

/// # Safety
/// `data` holds `size` elements that live and do not change for `'a`, or
/// `size` is 0.
unsafe fn raw_slice<'a>(data: *const f32, size: usize) -> &'a [f32] {
    if size == 0 {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { slice::from_raw_parts(data, size) }
    }
}

unsafe extern "C" fn release(context: *mut c_void) {
    // SAFETY: `host_op` made it with `Box::into_raw`, and it is given here
    // once. A captured value that panics in its destructor ends the process,
    // for a panic cannot leave an `extern "C"` function.
    drop(unsafe { Box::from_raw(context.cast::<Box<Kernel>>()) });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use mlx_rs::{Device, Dtype, with_device};

    use super::*;

    fn on_cpu<T>(f: impl FnOnce(&Stream) -> T) -> T {
        with_device(Device::cpu(), || f(&Stream::thread_local_or_default()))
    }

    fn copy(inputs: &[&[f32]], output: &mut [f32]) {
        output.copy_from_slice(inputs[0]);
    }

    #[test]
    fn runs_when_its_result_is_asked_for() {
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        on_cpu(|stream| {
            let x = Array::from_slice(&[1.0_f32, 2.0], &[2]);
            let y = host_op(&[1], &[&x, &x], stream, move |inputs, output| {
                count.fetch_add(1, Ordering::Relaxed);
                output[0] = inputs[0][0] + inputs[1][1];
            })
            .unwrap();
            assert_eq!(runs.load(Ordering::Relaxed), 0);
            assert_eq!(y.add(&x).unwrap().as_slice::<f32>(), [4.0, 5.0]);
        });
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn sees_strided_inputs_row_by_row() {
        on_cpu(|stream| {
            let x = Array::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
            let turned = x.transpose_axes(&[1, 0]).unwrap();
            let y = host_op(&[6], &[&turned], stream, copy).unwrap();
            assert_eq!(y.as_slice::<f32>(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
            turned.eval().unwrap();
            let y = host_op(&[6], &[&turned], stream, copy).unwrap();
            assert_eq!(y.as_slice::<f32>(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        });
    }

    #[test]
    fn a_panic_becomes_nan() {
        on_cpu(|stream| {
            let x = Array::from_slice(&[1.0_f32, 2.0], &[2]);
            // The output is longer than the input.
            let y = host_op(&[3], &[&x], stream, copy).unwrap();
            assert!(y.as_slice::<f32>().iter().all(|value| value.is_nan()));
        });
    }

    #[test]
    fn releases_its_kernel_evaluated_or_not() {
        let kept = Arc::new(());
        for evaluated in [false, true] {
            on_cpu(|stream| {
                let x = Array::from_slice(&[1.0_f32], &[1]);
                let held = Arc::clone(&kept);
                let y = host_op(&[1], &[&x], stream, move |inputs, output| {
                    let _ = &held;
                    copy(inputs, output);
                })
                .unwrap();
                assert_eq!(Arc::strong_count(&kept), 2);
                if evaluated {
                    y.add(&x).unwrap().eval().unwrap();
                }
            });
            assert_eq!(Arc::strong_count(&kept), 1, "evaluated: {evaluated}");
        }
        on_cpu(|stream| {
            let held = Arc::clone(&kept);
            let integers = Array::from_slice(&[1_i32], &[1]);
            let refused = host_op(&[1], &[&integers], stream, move |_, _| {
                let _ = &held;
            });
            assert!(refused.is_err());
        });
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn empty_arrays_are_fine() {
        on_cpu(|stream| {
            let x = Array::zeros::<f32>(&[0, 4]).unwrap();
            let y = host_op(&[0, 4], &[&x], stream, copy).unwrap();
            y.eval().unwrap();
            assert_eq!((y.shape(), y.dtype()), ([0, 4].as_slice(), Dtype::Float32));
        });
    }

    #[test]
    fn what_cannot_run_is_refused() {
        on_cpu(|stream| {
            let x = Array::from_slice(&[1.0_f32], &[1]);
            let half = x.as_dtype(Dtype::Float16).unwrap();
            let error = host_op(&[1], &[&half], stream, copy).unwrap_err();
            assert!(error.what().contains("f32"));
            let error = host_op(&[-1], &[&x], stream, copy).unwrap_err();
            assert!(error.what().contains("[-1]"));
        });
    }
}
