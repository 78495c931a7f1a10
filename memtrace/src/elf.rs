//! What an ELF file says of itself, for every room that opens one.

use object::Object;

/// The release in the banner that a glibc prints when it is run: "... stable release version 2.36."
pub(crate) fn glibc_release(file: &[u8]) -> Option<String> {
    const BANNER: &[u8] = b"release version ";
    let at = file.windows(BANNER.len()).position(|window| window == BANNER)? + BANNER.len();
    let digits = file[at..]
        .iter()
        .take(16)
        .take_while(|byte| byte.is_ascii_digit() || **byte == b'.');
    let version: String = digits.map(|&byte| char::from(byte)).collect();
    let version = version.trim_end_matches('.');
    (!version.is_empty()).then(|| version.to_owned())
}

/// The build id in hexadecimal digits.
pub(crate) fn build_id<'data>(file: &impl Object<'data>) -> Option<String> {
    let id = file.build_id().ok().flatten()?;
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}
