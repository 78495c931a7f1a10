//! What a session looks like: functions from plain data to text.

pub mod html;
pub mod json;
pub mod table;
pub mod text;

pub use super::picture::svg;
