//! Foreign bytes made fit for a terminal: process names, command lines and paths are chosen by whoever runs the process.

/// The text without control characters (escape sequences included) and without the invisible characters that reorder
/// what is read; bytes that are no UTF-8 become the replacement character.
pub fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .filter(|&c| !c.is_control() && !reorders(c))
        .collect()
}

/// Direction marks, embeddings, overrides and isolates of bidirectional text, and characters without a width.
fn reorders(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_gone() {
        assert_eq!(printable(b"plain name"), "plain name");
        assert_eq!(printable(b"\x1b[2Jred\x1b[31m\r\n\tname\x07"), "[2Jred[31mname");
        assert_eq!(
            printable("caf\u{e9} \u{202e}gpj.exe\u{9b}1m".as_bytes()),
            "caf\u{e9} gpj.exe1m"
        );
        assert_eq!(printable(b"\xff\xfe"), "\u{fffd}\u{fffd}");
    }
}
