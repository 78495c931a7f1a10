//! Programs that run beside a test, synchronised by a handshake.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A program that says a line when it is where the test wants it, and ends when its standard input is closed.
pub struct Running {
    pub child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self { child, stdout };
        assert_eq!(running.line(), "ready", "the program's first line");
        running
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Lets the program end, and checks that nothing has harmed it.
    pub fn end(mut self) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the program ended with {status}: {rest}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only a test that has failed leaves it running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Allocates, says "ready", waits for the end of its input, frees.
pub const ALLOCATES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    void *volatile block = malloc(100);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {}
    free(block);
    return 0;
}
"#;
