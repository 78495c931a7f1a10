//! Recorded traces: magic, version, codec.
