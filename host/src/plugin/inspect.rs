//! What an upload is, read from its bytes. All but [`sniff`] parses what a
//! stranger wrote and belongs in the child process.

use std::panic::{AssertUnwindSafe, catch_unwind};

use wit_component::{ComponentEncoder, DecodedWasm};

use super::fault::shorten;
use super::loaded::Kind;
use super::upload::{UploadCode, UploadError};
use super::wasi;

const PACKAGE: &str = "sluice:sampling/";
/// The contract's version; any of its patch releases is compatible.
const VERSION: (u64, u64) = (0, 1);

const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";
const MODULE: &[u8] = b"\0asm\x01\0\0\0";

/// The two forms an upload may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Component,
    /// A core module that carries its component type in a custom section.
    Module,
}

/// Tells an upload's form from its first bytes, so that what is clearly
/// something else is refused without a process.
pub(super) fn sniff(bytes: &[u8]) -> Result<Form, UploadError> {
    let refuse = |code, message: &str| Err(UploadError::new(code, message));
    if bytes.starts_with(COMPONENT) {
        return Ok(Form::Component);
    }
    if bytes.starts_with(MODULE) {
        return Ok(Form::Module);
    }
    if bytes.is_empty() {
        return refuse(UploadCode::NotAComponent, "the upload is empty");
    }
    if COMPONENT.starts_with(bytes) || MODULE.starts_with(bytes) {
        return refuse(
            UploadCode::TruncatedComponent,
            "the upload ends within the first eight bytes of a component",
        );
    }
    if bytes.starts_with(b"\0asm") {
        return refuse(
            UploadCode::NotAComponent,
            "the upload is WebAssembly of an unknown version, neither a component nor a module",
        );
    }
    if bytes.starts_with(b"\x7fELF") {
        return refuse(
            UploadCode::NativeCode,
            "the upload is native code, such as a precompiled component; upload the component \
             itself",
        );
    }
    if bytes.trim_ascii_start().starts_with(b"(") {
        return refuse(
            UploadCode::TextComponent,
            "the upload is WebAssembly text; upload the binary form",
        );
    }
    refuse(
        UploadCode::NotAComponent,
        "the upload is not WebAssembly: it does not begin with \\0asm",
    )
}

/// An upload as a component, and its kind: all that is read of one before it is
/// compiled. It parses what a stranger wrote, so a server leaves it to a process
/// of its own.
///
/// # Errors
/// When the bytes are no plugin.
pub fn component(bytes: &[u8]) -> Result<(Vec<u8>, Kind), UploadError> {
    let form = sniff(bytes)?;
    check_length(bytes)?;
    let component = match form {
        Form::Component => bytes.to_vec(),
        Form::Module => componentize(bytes)?,
    };
    let kind = find_kind(&component)?;
    Ok((component, kind))
}

/// Checks that the last section ends where the bytes do.
fn check_length(bytes: &[u8]) -> Result<(), UploadError> {
    let mut rest = &bytes[COMPONENT.len()..];
    while let [_id, after_id @ ..] = rest {
        rest = read_leb128(after_id)
            .and_then(|(size, after)| after.get(size..))
            .ok_or_else(|| {
                UploadError::new(
                    UploadCode::TruncatedComponent,
                    format!(
                        "the upload ends within a section, after {} bytes",
                        bytes.len()
                    ),
                )
            })?;
    }
    Ok(())
}

/// A section's size, unsigned LEB128 of at most 32 bits, and what follows it.
fn read_leb128(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0;
    for (i, byte) in bytes.iter().take(5).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[i + 1..]));
        }
    }
    None
}

/// Turns a core module into the component that its custom section describes.
fn componentize(module: &[u8]) -> Result<Vec<u8>, UploadError> {
    let encode = || {
        ComponentEncoder::default()
            .validate(true)
            .module(module)
            .and_then(|mut encoder| encoder.encode())
            .map_err(|error| format!("{error:#}"))
    };
    contained(encode).map_err(|error| {
        UploadError::new(
            UploadCode::InvalidComponent,
            shorten(format!(
                "the upload is a core module that cannot become a component: {error}"
            )),
        )
    })
}

/// Runs code of the library, which panics on some components that are invalid.
fn contained<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("it cannot be read".to_owned()))
}

/// Reads a component's imports and exports: what kind of plugin it is, and
/// that it asks for nothing its kind does not get.
fn find_kind(component: &[u8]) -> Result<Kind, UploadError> {
    let Interfaces { imports, exports } = decode(component)?;
    let kind = kind_of_exports(&exports)?;
    check_imports(kind, &imports)?;
    Ok(kind)
}

/// The interfaces that a component, or a core module that carries its type,
/// imports and exports, such as `sluice:sampling/edits@0.1.0`. For a plugin that
/// was uploaded, by its author's commands: a server parses no uploads.
///
/// # Errors
/// When the bytes are no component.
pub fn interfaces(bytes: &[u8]) -> Result<Interfaces, UploadError> {
    let component = match sniff(bytes)? {
        Form::Component => bytes.to_vec(),
        Form::Module => componentize(bytes)?,
    };
    decode(&component)
}

/// What a component asks of its host and gives to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interfaces {
    pub imports: Vec<String>,
    pub exports: Vec<String>,
}

fn decode(component: &[u8]) -> Result<Interfaces, UploadError> {
    let decode = || wit_component::decode(component).map_err(|error| format!("{error:#}"));
    let decoded = contained(decode).map_err(|error| {
        UploadError::new(
            UploadCode::InvalidComponent,
            shorten(format!("the upload is not a valid component: {error}")),
        )
    })?;
    let DecodedWasm::Component(resolve, world) = decoded else {
        return Err(UploadError::new(
            UploadCode::NotAComponent,
            "the upload is a WIT package, which describes components but is none",
        ));
    };
    let world = &resolve.worlds[world];
    let name = |key| resolve.name_world_key(key);
    Ok(Interfaces {
        imports: world.imports.keys().map(name).collect(),
        exports: world.exports.keys().map(name).collect(),
    })
}

/// Exactly one of the three interfaces makes a plugin of its kind; exports
/// that the contract does not know are ignored.
fn kind_of_exports(exports: &[String]) -> Result<Kind, UploadError> {
    let mut found = Vec::new();
    let mut describes = false;
    for export in exports {
        let Some(interface) = contract_interface(export, "exports")? else {
            continue;
        };
        describes |= interface == "plugin";
        found.extend(
            Kind::ALL
                .into_iter()
                .filter(|kind| kind.name() == interface),
        );
    }
    let kind = match found[..] {
        [kind] => kind,
        [] => {
            return Err(UploadError::new(
                UploadCode::NoKind,
                "the component exports none of token-processor, logits-processor and sampler of \
                 sluice:sampling@0.1.0",
            ));
        }
        _ => {
            let kinds: Vec<_> = found.iter().map(|kind| kind.name()).collect();
            return Err(UploadError::new(
                UploadCode::SeveralKinds,
                format!(
                    "the component exports {}; it may be one of them",
                    kinds.join(" and ")
                ),
            ));
        }
    };
    if !describes {
        return Err(UploadError::new(
            UploadCode::NoKind,
            "the component does not export the interface `plugin`, by which it describes itself",
        ));
    }
    Ok(kind)
}

fn check_imports(kind: Kind, imports: &[String]) -> Result<(), UploadError> {
    let allowed: &[&str] = match kind {
        Kind::TokenProcessor => &["types", "vocabulary", "edits", "control", "log"],
        Kind::LogitsProcessor => &["types", "vocabulary", "logits", "edits", "random", "log"],
        Kind::Sampler => &["types", "vocabulary", "logits", "random", "log"],
    };
    for import in imports {
        if wasi::interface(import).is_some() {
            continue;
        }
        let interface = contract_interface(import, "imports")?;
        if !interface.is_some_and(|interface| allowed.contains(&interface)) {
            return Err(UploadError::new(
                UploadCode::UnknownImport,
                shorten(format!(
                    "the component imports {import}, which a {kind} does not get; it may import \
                     {}, and WASI 0.2 without http",
                    allowed.join(", ")
                )),
            ));
        }
    }
    Ok(())
}

/// The name of one of the contract's interfaces, without package and version;
/// `None` if it is something else's.
fn contract_interface<'a>(name: &'a str, verb: &str) -> Result<Option<&'a str>, UploadError> {
    let Some(interface) = name.strip_prefix(PACKAGE) else {
        return Ok(None);
    };
    let (interface, version) = interface.split_once('@').unwrap_or((interface, ""));
    let compatible = semver::Version::parse(version)
        .is_ok_and(|version| (version.major, version.minor) == VERSION && version.pre.is_empty());
    if compatible {
        return Ok(Some(interface));
    }
    Err(UploadError::new(
        UploadCode::ContractVersion,
        shorten(format!(
            "the component {verb} {name}; this server knows the contract sluice:sampling@{}.{}",
            VERSION.0, VERSION.1
        )),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn code<T>(result: Result<T, UploadError>) -> &'static str {
        result.err().map_or("ok", |error| error.code())
    }

    fn names(interfaces: &[&str]) -> Vec<String> {
        interfaces.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn first_bytes_tell_the_form() {
        assert_eq!(sniff(b"\0asm\x0d\0\x01\0rest").unwrap(), Form::Component);
        assert_eq!(sniff(b"\0asm\x01\0\0\0").unwrap(), Form::Module);
        assert_eq!(code(sniff(b"")), "not_a_component");
        assert_eq!(code(sniff(b"\0as")), "truncated_component");
        assert_eq!(code(sniff(b"\0asm\x0d\0\x01")), "truncated_component");
        assert_eq!(code(sniff(b"\0asm\x02\0\0\0")), "not_a_component");
        assert_eq!(code(sniff(b"\x7fELF\x02\x01")), "native_code");
        assert_eq!(code(sniff(b"\n  (component)")), "text_component");
        assert_eq!(code(sniff(b"hello")), "not_a_component");
    }

    #[test]
    fn a_section_that_overruns_is_truncated() {
        let whole = [MODULE, &[0, 3, 1, b'a', 9], &[0, 0x81, 0x00, 7]].concat();
        assert_eq!(code(check_length(&whole)), "ok");
        assert_eq!(
            code(check_length(&whole[..whole.len() - 1])),
            "truncated_component"
        );
        assert_eq!(
            code(check_length(&whole[..=MODULE.len()])),
            "truncated_component"
        );
        assert_eq!(code(check_length(MODULE)), "ok");
    }

    #[test]
    fn exactly_one_kind_is_exported() {
        let plugin = "sluice:sampling/plugin@0.1.0";
        let sampler = "sluice:sampling/sampler@0.1.3";
        let logits = "sluice:sampling/logits-processor@0.1.0";
        let other = "wasi:cli/run@0.2.0";
        assert_eq!(
            kind_of_exports(&names(&[other, plugin, sampler])).unwrap(),
            Kind::Sampler
        );
        assert_eq!(code(kind_of_exports(&names(&[plugin]))), "no_kind");
        assert_eq!(code(kind_of_exports(&names(&[sampler]))), "no_kind");
        assert_eq!(code(kind_of_exports(&names(&[other]))), "no_kind");
        assert_eq!(
            code(kind_of_exports(&names(&[plugin, sampler, logits]))),
            "several_kinds"
        );
        for version in ["@0.2.0", "@1.1.0", "@0.1.0-rc.1", ""] {
            let export = format!("sluice:sampling/sampler{version}");
            assert_eq!(
                code(kind_of_exports(&names(&[plugin, &export]))),
                "contract_version",
                "{version}"
            );
        }
    }

    #[test]
    fn a_kind_gets_its_own_imports_only() {
        let import = |kind, name: &str| code(check_imports(kind, &names(&[name])));
        let logits = "sluice:sampling/logits@0.1.0";
        let random = "sluice:sampling/random@0.1.0";
        let control = "sluice:sampling/control@0.1.0";
        let edits = "sluice:sampling/edits@0.1.0";
        assert_eq!(import(Kind::TokenProcessor, logits), "unknown_import");
        assert_eq!(import(Kind::TokenProcessor, random), "unknown_import");
        assert_eq!(import(Kind::TokenProcessor, control), "ok");
        assert_eq!(import(Kind::LogitsProcessor, control), "unknown_import");
        assert_eq!(import(Kind::LogitsProcessor, logits), "ok");
        assert_eq!(import(Kind::Sampler, edits), "unknown_import");
        assert_eq!(import(Kind::Sampler, "wasi:io/poll@0.2.0"), "ok");
        assert_eq!(
            import(Kind::Sampler, "wasi:http/types@0.2.0"),
            "unknown_import"
        );
        assert_eq!(
            import(Kind::Sampler, "sluice:sampling/logits@0.2.0"),
            "contract_version"
        );
    }
}
