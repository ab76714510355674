//! Digests of files.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read},
    path::Path,
};

use sha2::{Digest, Sha256};

/// The SHA-256 of a file in hexadecimal. Tells how many bytes were read.
pub(super) fn sha256(path: &Path, progress: &mut dyn FnMut(u64)) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done_bytes = 0;
    loop {
        let n_bytes = file.read(&mut buffer)?;
        if n_bytes == 0 {
            break;
        }
        hasher.update(&buffer[..n_bytes]);
        done_bytes += n_bytes as u64;
        progress(done_bytes);
    }
    let mut digest = String::new();
    for byte in hasher.finalize() {
        // Writing to a String never fails.
        let _ = write!(digest, "{byte:02x}");
    }
    Ok(digest)
}
