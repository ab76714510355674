//! Lets the binary find libmlx at run time, and tells the code MLX's version.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(directory) = env::var("DEP_MLX_LIB_DIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{directory}");
    }
    if let Ok(version) = env::var("DEP_MLX_VERSION") {
        println!("cargo::rustc-env=SLUICE_MLX_VERSION={version}");
    }
}
