//! The BLAS function that libmlx calls for every f32 product.
//!
//! The executable comes first when the dynamic linker looks for a symbol, so
//! this definition takes the place of the slow one in MLX's package.

use std::{
    io::Write,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    matmul::{Dense, Product},
    pool::Pool,
    simd::Level,
};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// How often [`cblas_sgemm`] has been called in this process.
pub fn sgemm_calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

const ROW_MAJOR: i32 = 101;
const COLUMN_MAJOR: i32 = 102;
const AS_IS: i32 = 111;
const TRANSPOSED: i32 = 112;
const CONJUGATE_TRANSPOSED: i32 = 113;

/// C ← alpha · op(A) · op(B) + beta · C, as in the reference CBLAS: `order` 101
/// is row-major and 102 column-major, op is nothing (111) or the transpose (112
/// and 113), and with `beta` 0 C is not read.
///
/// A call with arguments that the reference would end the process for leaves a
/// line on standard error and C as it was.
///
/// # Safety
/// The matrices have the sizes and row distances that the arguments say; C
/// overlaps neither A nor B.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cblas_sgemm(
    order: i32,
    transpose_a: i32,
    transpose_b: i32,
    m: i32,
    n: i32,
    k: i32,
    alpha: f32,
    a: *const f32,
    lda: i32,
    b: *const f32,
    ldb: i32,
    beta: f32,
    c: *mut f32,
    ldc: i32,
) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let a = Matrix {
        data: a,
        stride: lda,
        transposed: transpose_a,
    };
    let b = Matrix {
        data: b,
        stride: ldb,
        transposed: transpose_b,
    };
    // A column-major product is the row-major product of the transposes.
    let call = match order {
        ROW_MAJOR => Call::new([m, n, k], a, b, c, ldc),
        COLUMN_MAJOR => Call::new([n, m, k], b, a, c, ldc),
        _ => None,
    };
    match call {
        // SAFETY: the caller vouches for the matrices.
        Some(call) => unsafe { call.compute(alpha, beta) },
        None => {
            // Nothing may unwind into C, hence not `eprintln`.
            let _ = writeln!(
                std::io::stderr(),
                "cblas_sgemm: bad arguments: order {order}, transposes {transpose_a} \
                 {transpose_b}, m {m}, n {n}, k {k}, lda {lda}, ldb {ldb}, ldc {ldc}"
            );
        }
    }
}

/// An operand as the caller describes it.
#[derive(Clone, Copy)]
struct Matrix {
    data: *const f32,
    stride: i32,
    transposed: i32,
}

/// An operand as it lies in memory.
#[derive(Clone, Copy)]
struct Operand {
    data: *const f32,
    row_stride: usize,
    column_stride: usize,
}

impl Matrix {
    /// The operand op(self), `rows` by `columns`.
    fn operand(self, rows: usize, columns: usize) -> Option<Operand> {
        let transposed = match self.transposed {
            AS_IS => false,
            TRANSPOSED | CONJUGATE_TRANSPOSED => true,
            _ => return None,
        };
        let stride = usize::try_from(self.stride).ok()?;
        let width = if transposed { rows } else { columns };
        if stride < width.max(1) {
            return None;
        }
        let (row_stride, column_stride) = if transposed { (1, stride) } else { (stride, 1) };
        Some(Operand {
            data: self.data,
            row_stride,
            column_stride,
        })
    }
}

/// A valid call, row-major.
struct Call {
    m: usize,
    n: usize,
    k: usize,
    a: Operand,
    b: Operand,
    c: *mut f32,
    ldc: usize,
}

impl Call {
    fn new([m, n, k]: [i32; 3], a: Matrix, b: Matrix, c: *mut f32, ldc: i32) -> Option<Self> {
        let size = |x: i32| usize::try_from(x).ok();
        let (m, n, k) = (size(m)?, size(n)?, size(k)?);
        let ldc = size(ldc).filter(|&ldc| ldc >= n.max(1))?;
        Some(Self {
            m,
            n,
            k,
            a: a.operand(m, k)?,
            b: b.operand(k, n)?,
            c,
            ldc,
        })
    }

    /// # Safety
    /// As for [`cblas_sgemm`].
    #[allow(clippy::float_cmp)] // 0 and 1 are special values of BLAS
    unsafe fn compute(&self, alpha: f32, beta: f32) {
        let Self {
            m,
            n,
            k,
            a,
            b,
            c,
            ldc,
        } = *self;
        if m == 0 || n == 0 {
            return;
        }
        if k == 0 || alpha == 0.0 {
            // SAFETY: the caller vouches for C.
            unsafe { self.scale(beta) };
            return;
        }
        if alpha == 1.0 && beta == 0.0 && a.column_stride == 1 && b.row_stride == 1 {
            let b = Dense {
                data: b.data,
                stride: b.column_stride,
            };
            let product = Product {
                m,
                n,
                k,
                a: a.data,
                lda: a.row_stride,
                b,
                c,
                ldc,
                maxima: None,
            };
            // SAFETY: the caller vouches for the matrices; both operands are
            // contiguous along k.
            unsafe { product.compute(Level::best(), Pool::shared()) };
            return;
        }
        let signed = |stride: usize| stride as isize;
        // SAFETY: the caller vouches for the matrices. `gemm` computes
        // beta * C + alpha * A * B, its own alpha being our beta.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c,
                1,
                signed(ldc),
                beta != 0.0,
                a.data,
                signed(a.column_stride),
                signed(a.row_stride),
                b.data,
                signed(b.column_stride),
                signed(b.row_stride),
                beta,
                alpha,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }

    /// C ← beta · C.
    ///
    /// # Safety
    /// C is as the call says.
    unsafe fn scale(&self, beta: f32) {
        for i in 0..self.m {
            for j in 0..self.n {
                // SAFETY: within C.
                unsafe {
                    let at = self.c.add(i * self.ldc + j);
                    at.write(if beta == 0.0 { 0.0 } else { beta * at.read() });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
