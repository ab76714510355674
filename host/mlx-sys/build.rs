//! Builds the bindings to MLX without cmake, libclang or a system BLAS:
//!
//! 1. libmlx and its headers come prebuilt from the Python package index, as
//!    the wheel of one pinned version whose hash is checked, unpacked once into
//!    the user's cache directory.
//! 2. mlx-c comes as the C++ sources inside the published `mlx-sys` crate,
//!    which cargo fetches and verifies, and is compiled here.
//!
//! `SLUICE_MLX_DIR` names an unpacked wheel to use instead of 1.
//! Dependents see `DEP_MLX_LIB_DIR`, the directory of libmlx.

use std::{
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

const MLX_VERSION: &str = "0.32.2";

/// The wheels of one system. Where several fit (Apple's differ by release of
/// macOS) pip takes the newest that the machine can run.
struct Wheel {
    os: &'static str,
    arch: &'static str,
    package: &'static str,
    library: &'static str,
    sha256: &'static [&'static str],
}

const WHEELS: [Wheel; 3] = [
    Wheel {
        os: "linux",
        arch: "x86_64",
        package: "mlx-cpu",
        library: "libmlx.so",
        // manylinux_2_35_x86_64
        sha256: &["fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878"],
    },
    Wheel {
        os: "linux",
        arch: "aarch64",
        package: "mlx-cpu",
        library: "libmlx.so",
        // manylinux_2_35_aarch64
        sha256: &["d0f94625588b51a878786dd51cec5617894ce586cf3c94645ce1b64e24c27c0b"],
    },
    Wheel {
        os: "macos",
        arch: "aarch64",
        package: "mlx-metal",
        library: "libmlx.dylib",
        // macosx_14_0_arm64, macosx_15_0_arm64, macosx_26_0_arm64
        sha256: &[
            "3825fff379dbc107dd3413e564a06caeaa24819910ec49c0439e454c06a1b9b8",
            "55a369250d220b2cf10213a87a2ac1b1a420608c5b35b1df4e7147ac8e32f121",
            "e6abeac9ac5265830c9c1541b6f96e9be37a85c2446763a46ad466c63a3837ab",
        ],
    },
];

type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            for line in message.lines().filter(|line| !line.trim().is_empty()) {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<()> {
    for file in [
        "build.rs",
        "format.h",
        "shim.cpp",
        "host_op.cpp",
        "mlx-c-source/Cargo.lock",
    ] {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rerun-if-env-changed=SLUICE_MLX_DIR");

    let (os, arch) = (
        variable("CARGO_CFG_TARGET_OS")?,
        variable("CARGO_CFG_TARGET_ARCH")?,
    );
    let wheel = WHEELS.iter().find(|wheel| wheel.os == os && wheel.arch == arch).ok_or_else(|| {
        format!("MLX is published for Linux (x86_64, aarch64) and macOS (aarch64), not for {os} on {arch}.")
    })?;
    let mlx = match env::var_os("SLUICE_MLX_DIR") {
        Some(directory) => PathBuf::from(directory),
        None => fetch_mlx(wheel)?,
    };
    let library_directory = mlx.join("mlx/lib");
    let library = library_directory.join(wheel.library);
    if !library.is_file() {
        return Err(format!(
            "There is no {}. SLUICE_MLX_DIR must name a directory into which the wheel {}=={MLX_VERSION} was unpacked.",
            library.display(),
            wheel.package
        ));
    }
    // If somebody empties the cache, fetch it again.
    println!("cargo::rerun-if-changed={}", library.display());
    compile_mlx_c(&mlx.join("mlx/include"), &fetch_mlx_c()?)?;

    println!(
        "cargo::rustc-link-search=native={}",
        library_directory.display()
    );
    println!("cargo::rustc-link-lib=dylib=mlx");
    println!("cargo::metadata=lib_dir={}", library_directory.display());
    println!("cargo::metadata=version={MLX_VERSION}");
    Ok(())
}

/// The unpacked wheel in the user's cache directory, fetched if it is not
/// there yet. Of builds that run at once one fetches and the others wait.
fn fetch_mlx(wheel: &Wheel) -> Result<PathBuf> {
    let cache = cache_directory()?;
    let name = format!("mlx-{MLX_VERSION}-{}", &wheel.sha256[0][..16]);
    let unpacked = cache.join(&name);
    if unpacked.is_dir() {
        return Ok(unpacked);
    }
    if variable("HOST")? != variable("TARGET")? {
        return Err(format!(
            "pip only fetches wheels for the machine it runs on. Unpack {}=={MLX_VERSION} for the target and set SLUICE_MLX_DIR to its directory.",
            wheel.package
        ));
    }
    let lock = cache.join("mlx.lock");
    // Released by the system when this process ends, however it ends.
    let _held = File::create(&lock)
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| file_error("lock", &lock, &error))?;
    if !unpacked.is_dir() {
        let work = cache.join(format!("{name}.partial"));
        // What an interrupted build may have left.
        let _ = fs::remove_dir_all(&work);
        unpack_mlx(wheel, &work, &unpacked)?;
        let _ = fs::remove_dir_all(&work);
    }
    Ok(unpacked)
}

fn unpack_mlx(wheel: &Wheel, work: &Path, to: &Path) -> Result<()> {
    let (download, content) = (work.join("download"), work.join("content"));
    fs::create_dir_all(&download).map_err(|error| file_error("create", &download, &error))?;
    let requirements = work.join("requirements.txt");
    let hashes: String = wheel
        .sha256
        .iter()
        .map(|hash| format!(" --hash=sha256:{hash}"))
        .collect();
    fs::write(
        &requirements,
        format!("{}=={MLX_VERSION}{hashes}\n", wheel.package),
    )
    .map_err(|error| file_error("write", &requirements, &error))?;

    let advice = format!(
        "MLX comes as the Python package {}=={MLX_VERSION}. Building needs python3 with pip (Debian, Ubuntu: apt install python3-pip) and a way to the package index, or SLUICE_MLX_DIR set to a directory into which that wheel was unpacked.",
        wheel.package
    );
    run(
        Command::new("python3")
            .args([
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .args([
                "--no-deps",
                "--only-binary=:all:",
                "--require-hashes",
                "--dest",
            ])
            .arg(&download)
            .arg("--requirement")
            .arg(&requirements),
        &advice,
    )?;
    let file = fs::read_dir(&download)
        .map_err(|error| file_error("read", &download, &error))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| format!("pip left no wheel in {}.", download.display()))?;
    run(
        Command::new("python3")
            .args(["-m", "zipfile", "--extract"])
            .arg(&file)
            .arg(&content),
        &advice,
    )?;
    fs::rename(&content, to).map_err(|error| file_error("create", to, &error))
}

/// Where per-user caches live: `$XDG_CACHE_HOME` or `~/.cache`.
fn cache_directory() -> Result<PathBuf> {
    let directory = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))
        .ok_or("There is no home directory to keep MLX in: set XDG_CACHE_HOME or SLUICE_MLX_DIR.")?
        .join("sluice");
    fs::create_dir_all(&directory).map_err(|error| file_error("create", &directory, &error))?;
    Ok(directory)
}

/// The directory of mlx-c's sources, in cargo's own registry.
fn fetch_mlx_c() -> Result<PathBuf> {
    let manifest = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("mlx-c-source/Cargo.toml");
    let output = run(
        Command::new(variable("CARGO")?)
            .args([
                "metadata",
                "--locked",
                "--format-version",
                "1",
                "--manifest-path",
            ])
            .arg(&manifest),
        "mlx-c comes as the sources inside the crate mlx-sys 0.7.0, which cargo could not fetch.",
    )?;
    let metadata: serde_json::Value = serde_json::from_slice(&output)
        .map_err(|error| format!("cargo metadata printed something else than JSON: {error}."))?;
    metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "mlx-sys")
        .and_then(|package| Path::new(package["manifest_path"].as_str()?).parent())
        .map(|crate_directory| crate_directory.join("src/mlx-c"))
        .filter(|sources| sources.join("mlx/c/mlx.h").is_file())
        .ok_or_else(|| "cargo metadata does not say where the sources of mlx-sys are.".to_owned())
}

fn compile_mlx_c(mlx_include: &Path, mlx_c: &Path) -> Result<()> {
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let directory = mlx_c.join("mlx/c");
    let mut files: Vec<PathBuf> = fs::read_dir(&directory)
        .map_err(|error| file_error("read", &directory, &error))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cpp"))
        .collect();
    files.sort();
    files.extend([here.join("shim.cpp"), here.join("host_op.cpp")]);

    let mut compiler = cc::Build::new();
    compiler
        .cpp(true)
        .std("c++20")
        .warnings(false)
        .include(mlx_c)
        .include(mlx_include);
    // Thin wrappers: nothing to gain from more.
    compiler.opt_level(1).debug(false);
    compiler.flag("-include").flag(here.join("format.h"));
    // mlx-c puts file names into its error texts: keep this machine's out.
    for (path, name) in [(mlx_c, "mlx-c"), (here.as_path(), "mlx-sys")] {
        compiler.flag(format!("-ffile-prefix-map={}={name}", path.display()));
    }
    compiler.files(files).try_compile("mlxc").map_err(|error| {
        format!(
            "Compiling mlx-c failed: {error}\nIt needs a C++20 compiler (Debian, Ubuntu: apt install g++; macOS: xcode-select --install)."
        )
    })
}

/// Runs a command and returns what it printed. The error says which command
/// failed, how, and what to do about it.
fn run(command: &mut Command, advice: &str) -> Result<Vec<u8>> {
    let line = format!("{command:?}").replace('"', "");
    let output = command
        .output()
        .map_err(|error| format!("Could not run `{line}`: {error}.\n{advice}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "`{line}` failed ({}):\n{said}\n{advice}",
        output.status
    ))
}

fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(|_| format!("{name} is not set: this script is run by cargo."))
}

fn file_error(action: &str, path: &Path, error: &io::Error) -> String {
    format!("Could not {action} {}: {error}.", path.display())
}
