//! The command line, read without allocating.

use crate::line;
use crate::programs::{self, Program};

pub enum Request {
    Help,
    List,
    Run {
        program: &'static Program,
        options: Options,
        wait: bool,
    },
}

/// The numbers a program runs with, in the order in which it names them.
pub struct Options {
    program: &'static Program,
    values: [u64; MAX_OPTIONS],
}

pub const MAX_OPTIONS: usize = 4;

impl Options {
    fn defaults(program: &'static Program) -> Self {
        let mut values = [0; MAX_OPTIONS];
        for (value, option) in values.iter_mut().zip(program.options) {
            *value = option.default;
        }
        Self { program, values }
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.program.options.iter().position(|option| option.name == name)
    }

    /// The value of an option that the program names in its table.
    pub fn get(&self, name: &str) -> u64 {
        self.values[self
            .index(name)
            .expect("a program asks for options of its own table only")]
    }

    /// The same, as a count of things in memory.
    pub fn count(&self, name: &str) -> usize {
        usize::try_from(self.get(name)).expect("options are checked against their maximum")
    }
}

pub const USAGE: &str = "usage: memtrace-lab list | NAME [--wait] [--OPTION N]...";

pub struct Wrong<'a> {
    what: &'static str,
    word: &'a str,
}

impl Wrong<'_> {
    pub fn print(&self) {
        line::error(format_args!("memtrace-lab: {}{}", self.what, self.word));
        line::error(format_args!("{USAGE}"));
    }
}

pub fn parse<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Request, Wrong<'a>> {
    let wrong = |what, word| Err(Wrong { what, word });
    let Some(name) = words.next() else {
        return wrong("no program is named", "");
    };
    if matches!(name, "--help" | "-h" | "help") {
        return Ok(Request::Help);
    }
    if name == "list" {
        return match words.next() {
            None => Ok(Request::List),
            Some(word) => wrong("list takes no ", word),
        };
    }
    let Some(program) = programs::ALL.iter().find(|program| program.name == name) else {
        return wrong("no such program: ", name);
    };
    let mut options = Options::defaults(program);
    let mut wait = false;
    while let Some(word) = words.next() {
        if word == "--wait" {
            wait = true;
            continue;
        }
        let Some(index) = word.strip_prefix("--").and_then(|name| options.index(name)) else {
            return wrong("this program has no option ", word);
        };
        let option = &program.options[index];
        let Some(value) = words.next().and_then(|text| text.parse().ok()) else {
            return wrong("a number has to follow ", word);
        };
        if value > option.maximum {
            return wrong("too large a number follows ", word);
        }
        options.values[index] = value;
    }
    Ok(Request::Run { program, options, wait })
}
