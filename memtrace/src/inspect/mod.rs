//! Reading another process's memory, behind the traits of memtrace-analysis::glibc.
