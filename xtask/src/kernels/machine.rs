//! What an architecture is called by those who have a word for it.

use crate::ebpf::Arch;

impl Arch {
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// Debian's name.
    pub fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// Rust's target of static and dynamic programs alike.
    pub fn triple(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Debian's directory of libraries, and the prefix of the C compiler's name.
    pub fn multiarch(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-linux-gnu",
            Self::Aarch64 => "aarch64-linux-gnu",
        }
    }

    /// The dynamic loader, as programs name it.
    pub fn loader(self) -> &'static str {
        match self {
            Self::X86_64 => "/lib64/ld-linux-x86-64.so.2",
            Self::Aarch64 => "/lib/ld-linux-aarch64.so.1",
        }
    }

    /// The system emulator.
    pub fn qemu(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Aarch64 => "qemu-system-aarch64",
        }
    }
}
