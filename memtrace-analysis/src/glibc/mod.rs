//! What glibc keeps in a process, read from outside.
