//! Lets the binary find libmlx at run time, and libmlx find our matrix product;
//! tells the code MLX's version.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(directory) = env::var("DEP_MLX_LIB_DIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{directory}");
    }
    if let Ok(version) = env::var("DEP_MLX_VERSION") {
        println!("cargo::rustc-env=SLUICE_MLX_VERSION={version}");
    }
    // libmlx asks the dynamic linker for `cblas_sgemm`, which looks into the
    // executable first: there it finds the one of `sluice-kernels`. On macOS
    // MLX is bound to Accelerate, which is fast.
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol=cblas_sgemm");
    }
}
