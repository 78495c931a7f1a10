//! `memtrace replay`: the report of a recorded trace, made again.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use anyhow::{Context, bail};
use memtrace_analysis::codec;

use super::args::ReplayArgs;
use super::exit::{Exit, complain, say};
use super::feed::Feed;
use super::output::Output;
use crate::trace_file::{ReadError, Reader};

pub fn run(args: &ReplayArgs) -> anyhow::Result<Exit> {
    let shown = if args.file == Path::new("-") {
        "standard input".to_owned()
    } else {
        args.file.display().to_string()
    };
    let context = || format!("replaying {shown}");
    let mut reader = Reader::new(open(&args.file).with_context(context)?).with_context(context)?;
    let encoding = reader.header().encoding;
    if encoding != codec::ENCODING_VERSION {
        bail!(
            "replaying {shown}: its events have encoding {encoding}, and this memtrace ({}) reads encoding {} (it was \
             written by memtrace {})",
            env!("CARGO_PKG_VERSION"),
            codec::ENCODING_VERSION,
            reader.header().memtrace
        );
    }
    let output = Output::new(&args.output)?;
    let mut feed = Feed::new(&output, None);
    let (undecodable, end) = feed_all(&mut reader, &mut feed)?;
    let reports = feed.reports();
    let unknown = reader.unknown();
    // What could be read is shown, then what could not is said.
    if reports.is_empty() {
        end.with_context(context)?;
        bail!("replaying {shown}: the trace holds no event");
    }
    output.deliver(&reports, feed.omitted())?;
    let mut exit = Exit::Success;
    if undecodable + unknown > 0 {
        say(&format!(
            "{shown}: {} events could not be decoded and are missing above",
            undecodable + unknown
        ));
        exit = Exit::Failure;
    }
    if let Err(error) = end {
        let events = reader.events();
        let error = anyhow::Error::new(error);
        complain(&error.context(format!("replaying {shown}: the report is of {events} events only")));
        exit = Exit::Failure;
    }
    Ok(exit)
}

fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    Ok(if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(path)?))
    })
}

/// Feeds all that can be read; gives the number of events that could not be decoded, and how the file ended.
fn feed_all(reader: &mut Reader<impl Read>, feed: &mut Feed<'_>) -> anyhow::Result<(u64, Result<(), ReadError>)> {
    let mut undecodable = 0;
    loop {
        match reader.next_event() {
            Ok(Some(payload)) => match codec::decode(payload) {
                Ok(event) => feed.push(event)?,
                Err(_) => undecodable += 1,
            },
            Ok(None) => return Ok((undecodable, Ok(()))),
            Err(error) => return Ok((undecodable, Err(error))),
        }
    }
}
