//! Uploads: what is read of one before it is compiled.

use sluice::plugin::{UploadCode, component as read, interfaces};

/// A component or a module, which is refused with a reason or is a plugin, and
/// then the component that was made of it is the same plugin.
pub fn component(bytes: &[u8]) -> bool {
    let known = interfaces(bytes);
    match read(bytes) {
        Ok((component, kind)) => {
            assert!(known.is_ok(), "{known:?}");
            assert_eq!(read(&component), Ok((component, kind)));
            true
        }
        Err(error) => {
            assert!(
                !matches!(
                    error.code,
                    UploadCode::Internal | UploadCode::VersionConflict | UploadCode::RegistryFull
                ),
                "{error:?}"
            );
            assert!(error.message.len() < 4096, "{error}");
            false
        }
    }
}
