//! The kernel side inside this binary.

use anyhow::{Context, Result, ensure};
use memtrace_common::{ABI, ABI_SECTION};
use object::{Object, ObjectSection};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/memtrace-ebpf"));

/// Whether memtrace was built with its kernel side.
pub fn has_kernel_side() -> bool {
    !OBJECT.is_empty()
}

/// The BPF object; an error when memtrace was built without it, or with one whose records it would misread.
pub fn embedded() -> Result<&'static [u8]> {
    ensure!(
        has_kernel_side(),
        "this memtrace was built without its kernel side, `cargo xtask build` makes it whole"
    );
    check_abi(OBJECT)?;
    Ok(OBJECT)
}

/// An object that is older or newer than the user side loads all the same, and what it sends means something else.
fn check_abi(object: &[u8]) -> Result<()> {
    let file = object::File::parse(object).context("reading the kernel side inside this memtrace")?;
    let says = match file.section_by_name(ABI_SECTION) {
        Some(section) => section.data().context("reading the ABI of the kernel side")?,
        // None was named before it was checked.
        None => &[],
    };
    ensure!(
        says == ABI.to_le_bytes(),
        "the kernel side inside this memtrace was built from another version of the source, `cargo xtask build` builds both sides anew"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use memtrace_test_support::skip::skip;

    use super::*;

    /// The object's copy, and where its ABI is; None, aloud, where memtrace was built without a kernel side.
    fn object(test: &str) -> Option<(Vec<u8>, usize)> {
        if !has_kernel_side() {
            skip(test, "no kernel side is built in (cargo xtask ebpf builds it)");
            return None;
        }
        let file = object::File::parse(OBJECT).unwrap();
        let (offset, length) = file.section_by_name(ABI_SECTION).unwrap().file_range().unwrap();
        assert_eq!(length, 8);
        Some((OBJECT.to_vec(), usize::try_from(offset).unwrap()))
    }

    fn refusal(object: &[u8]) -> String {
        check_abi(object).unwrap_err().to_string()
    }

    #[test]
    fn the_object_built_in_is_of_this_abi() {
        if object("the_object_built_in_is_of_this_abi").is_some() {
            embedded().unwrap();
        }
    }

    #[test]
    fn an_object_of_another_abi_is_refused() {
        let Some((mut object, at)) = object("an_object_of_another_abi_is_refused") else {
            return;
        };
        for byte in at..at + 8 {
            object[byte] ^= 0x10;
            assert!(refusal(&object).contains("cargo xtask build"), "byte {byte}");
            object[byte] ^= 0x10;
        }
        check_abi(&object).unwrap();
    }

    #[test]
    fn an_object_that_names_no_abi_is_refused() {
        let Some((mut object, _)) = object("an_object_that_names_no_abi_is_refused") else {
            return;
        };
        let name = object
            .windows(ABI_SECTION.len())
            .rposition(|window| window == ABI_SECTION.as_bytes())
            .unwrap();
        object[name] = b'M';
        assert!(refusal(&object).contains("cargo xtask build"));
    }
}
