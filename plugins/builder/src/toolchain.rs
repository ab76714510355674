//! A compiler that can make WebAssembly, as found on this machine.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use crate::component::{Component, TEST_PACKAGE, entries};

const TARGET: &str = "wasm32-unknown-unknown";
const PROFILE: &str = "guest";

/// What to do where there is none.
const MISSING: &str = "no compiler for WebAssembly found; one of these gives one:
    rustup target add wasm32-unknown-unknown
    apt-get install rustc-web cargo-web rust-web-src";

#[derive(Debug)]
pub(crate) struct Toolchain {
    cargo: PathBuf,
    rustc: PathBuf,
    sysroot: PathBuf,
    /// Set where the standard library must be built from its source: the
    /// linker, which such toolchains do not bring along.
    linker: Option<PathBuf>,
}

impl Toolchain {
    /// The toolchain in use if it has the target, else Debian's with the
    /// standard library's source.
    pub(crate) fn find() -> Result<Self> {
        let sysroot = sysroot("rustc")?;
        if sysroot.join("lib/rustlib").join(TARGET).is_dir() {
            let cargo = env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from);
            return Ok(Self {
                cargo,
                rustc: "rustc".into(),
                sysroot,
                linker: None,
            });
        }
        let debian = Path::new("/usr");
        ensure!(
            library(debian).is_dir() && debian.join("bin/cargo").is_file(),
            MISSING
        );
        let Some(linker) = linker(&sysroot)? else {
            bail!(
                "{} has no rust-lld, and wasm-ld is not in PATH: apt-get install lld",
                sysroot.display()
            );
        };
        Ok(Self {
            cargo: debian.join("bin/cargo"),
            rustc: debian.join("bin/rustc"),
            sysroot: debian.into(),
            linker: Some(linker),
        })
    }

    /// Builds the core modules, in order.
    pub(crate) fn build(&self, root: &Path, components: &[Component]) -> Result<Vec<PathBuf>> {
        let target_dir = root.join("target/guests");
        let mut command = Command::new(&self.cargo);
        command
            .current_dir(root)
            .args(["build", "--lib", "--target", TARGET, "--profile", PROFILE])
            .arg("--target-dir")
            .arg(&target_dir)
            .env("RUSTC", &self.rustc)
            .env("CARGO_ENCODED_RUSTFLAGS", self.flags(root)?.join("\x1f"));
        if let Some(linker) = &self.linker {
            command
                .arg("-Zbuild-std=std,panic_abort")
                .env("RUSTC_BOOTSTRAP", "1")
                .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
        }
        for component in components {
            if component.is_example {
                command.args(["-p", TEST_PACKAGE, "--example", &component.name]);
            } else {
                command.args(["-p", &component.package]);
            }
        }
        let status = command
            .status()
            .with_context(|| format!("running {}", self.cargo.display()))?;
        ensure!(
            status.success(),
            "{} could not build the components",
            self.cargo.display()
        );
        let built = target_dir.join(TARGET).join(PROFILE);
        let module = |component: &Component| {
            let folder = if component.is_example {
                built.join("examples")
            } else {
                built.clone()
            };
            folder.join(format!("{}.wasm", component.name.replace('-', "_")))
        };
        Ok(components.iter().map(module).collect())
    }

    /// SIMD, and no path of this machine in panic messages.
    fn flags(&self, root: &Path) -> Result<Vec<String>> {
        let library = library(&self.sysroot);
        let mut renamed = vec![
            (root.to_owned(), "."),
            (
                library.canonicalize().unwrap_or_else(|_| library.clone()),
                "std",
            ),
            (library, "std"),
        ];
        for registry in entries(&cargo_home()?.join("registry/src"))? {
            renamed.push((registry, "crates"));
        }
        let mut flags = vec!["-Ctarget-feature=+simd128".to_owned()];
        for (path, name) in renamed {
            flags.push(format!("--remap-path-prefix={}={name}", path.display()));
        }
        Ok(flags)
    }
}

fn sysroot(rustc: &str) -> Result<PathBuf> {
    let output = Command::new(rustc)
        .args(["--print", "sysroot"])
        .output()
        .context("running rustc")?;
    ensure!(output.status.success(), "rustc --print sysroot failed");
    Ok(String::from_utf8(output.stdout)?.trim().into())
}

/// Where a toolchain keeps the standard library's source.
fn library(sysroot: &Path) -> PathBuf {
    sysroot.join("lib/rustlib/src/rust/library")
}

/// The linker of the toolchain in use, or one in PATH.
fn linker(sysroot: &Path) -> Result<Option<PathBuf>> {
    for host in entries(&sysroot.join("lib/rustlib"))? {
        let linker = host.join("bin/rust-lld");
        if linker.is_file() {
            return Ok(Some(linker));
        }
    }
    let path = env::var_os("PATH").unwrap_or_default();
    Ok(env::split_paths(&path)
        .map(|folder| folder.join("wasm-ld"))
        .find(|linker| linker.is_file()))
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    Ok(env::home_dir().context("no home directory")?.join(".cargo"))
}
