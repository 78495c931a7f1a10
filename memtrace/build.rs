//! Puts the kernel side into the binary: the object that `cargo xtask ebpf` has built, if it is there.
//!
//! Without it the crate builds all the same, and says at run time what is missing: the analysis, replay and the other
//! commands need no kernel side.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    let workspace = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("..");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let directory = workspace.join("target/bpf").join(arch);
    let built = directory.join("memtrace-ebpf");
    let embedded = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("memtrace-ebpf");

    // Only its place is watched while the object is not there, since cargo takes a missing file for a changed one.
    if built.exists() {
        println!("cargo::rerun-if-changed={}", built.display());
        fs::copy(&built, &embedded).expect("copying the kernel side");
    } else {
        fs::create_dir_all(&directory).expect("making the place of the kernel side");
        println!("cargo::rerun-if-changed={}", directory.display());
        fs::write(&embedded, []).expect("writing an empty kernel side");
    }
}
