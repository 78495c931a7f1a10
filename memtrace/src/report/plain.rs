//! Strings that come from the traced process made harmless for a terminal.
//!
//! Process names, command lines and paths may hold anything, also escape sequences that recolour, retitle or reorder
//! what a terminal shows. Every line of text passes [`clean`], every JSON document [`escape_json`].

use std::borrow::Cow;

/// True for characters that act on a terminal, or on the order of the text, instead of being shown.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            // Marks, embeddings, overrides and isolates of the bidirectional algorithm, line and paragraph separators.
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// Each unsafe character replaced by U+FFFD.
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.contains(is_unsafe) {
        Cow::Owned(text.replace(is_unsafe, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// A JSON text with its unsafe characters written as `\uXXXX`.
///
/// Outside of strings JSON has no unsafe character but line ends and tabs (which stay), and inside of strings
/// serialisers escape those below U+0020 themselves, so what is left to escape always stands in a string.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    let must = |c: char| is_unsafe(c) && !matches!(c, '\n' | '\t' | '\r');
    if !json.contains(must) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if must(c) {
            // All of them lie in the basic plane, so one escape does.
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_lose_their_power() {
        assert_eq!(clean("a\x1b[31mb"), "a\u{fffd}[31mb");
        assert_eq!(clean("x\u{9b}2Jy\r\n"), "x\u{fffd}2Jy\u{fffd}\u{fffd}");
        assert_eq!(clean("evil\u{202e}txt"), "evil\u{fffd}txt");
        assert!(matches!(clean("häßlich ☂ ok"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({"name": "a\u{1b}b\u{7f}c\u{9b}d\u{202e}e\nf"});
        let text = serde_json::to_string_pretty(&value).unwrap();
        let escaped = escape_json(&text);
        assert!(!escaped.contains(|c: char| is_unsafe(c) && c != '\n'));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
