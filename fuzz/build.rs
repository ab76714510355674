//! Lets the targets find libmlx at run time, and libmlx find our matrix product,
//! as the build script of the server does.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(directory) = env::var("DEP_MLX_LIB_DIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{directory}");
    }
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol=cblas_sgemm");
    }
}
