//! Colour, where the reader can see it.

/// Whether text carries terminal attributes. Plain unless something asks for colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    colour: bool,
}

impl Style {
    pub const PLAIN: Self = Self { colour: false };
    pub const COLOUR: Self = Self { colour: true };

    /// Colour only on a terminal that is not a dumb one, and never against NO_COLOR (<https://no-color.org>).
    pub fn choose(is_terminal: bool, no_color: Option<&str>, term: Option<&str>) -> Self {
        let refused = no_color.is_some_and(|value| !value.is_empty());
        let colour = is_terminal && !refused && term != Some("dumb");
        Self { colour }
    }

    pub fn heading(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub fn faint(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub fn warning(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// Any attributes, by the codes of SGR.
    pub fn paint(self, code: &str, text: &str) -> String {
        self.wrap(code, text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_for_terminals_that_want_it() {
        assert_eq!(Style::choose(true, None, Some("xterm")), Style::COLOUR);
        assert_eq!(Style::choose(true, Some(""), None), Style::COLOUR);
        assert_eq!(Style::choose(true, Some("1"), None), Style::PLAIN);
        assert_eq!(Style::choose(true, None, Some("dumb")), Style::PLAIN);
        assert_eq!(Style::choose(false, None, Some("xterm")), Style::PLAIN);
    }
}
