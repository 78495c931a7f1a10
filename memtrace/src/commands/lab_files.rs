//! Where the lab's pictures and its page go. Both places are tried before minutes are spent on what belongs there.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};

use super::output;
use crate::lab::Session;
use crate::lab::render::{html, svg};
use crate::sentence;

pub struct Places<'a> {
    pictures: Option<&'a Path>,
    page: Option<&'a Path>,
}

/// A file that goes again when nothing comes of it, if it was not there before.
struct Page<'a> {
    path: &'a Path,
    file: File,
    is_new: bool,
    is_written: bool,
}

impl<'a> Places<'a> {
    pub fn prepare(pictures: Option<&'a Path>, page: Option<&'a Path>) -> Result<Self> {
        if let Some(directory) = pictures {
            fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
            try_out(directory).with_context(|| format!("writing pictures into {}", directory.display()))?;
        }
        if let Some(path) = page {
            // Goes again at once where it is new: however the run ends, no empty page is left.
            drop(Page::open(path)?);
        }
        Ok(Self { pictures, page })
    }

    pub fn deliver(self, session: &Session) -> Result<()> {
        if let Some(directory) = self.pictures {
            let pictures = session.done.iter().flat_map(|done| &done.measured.pictures);
            for picture in pictures.filter(|picture| !picture.is_empty()) {
                let path = directory.join(format!("{}.svg", picture.name));
                let mut page = Page::open(&path)?;
                page.write(&svg::render(picture)?)?;
            }
        }
        match self.page {
            Some(path) => Page::open(path)?.write(&html::render(session)?),
            None => Ok(()),
        }
    }
}

impl<'a> Page<'a> {
    /// What is there already stays until there is something to take its place.
    fn open(path: &'a Path) -> Result<Self> {
        let is_new = !path.exists();
        let opened = File::options().write(true).create(true).truncate(false).open(path);
        Ok(Self {
            path,
            file: opened.with_context(|| format!("writing {}", path.display()))?,
            is_new,
            is_written: false,
        })
    }

    fn write(&mut self, text: &str) -> Result<()> {
        output::replace(&self.file, text).with_context(|| format!("writing {}", self.path.display()))?;
        self.is_written = true;
        Ok(())
    }
}

impl Drop for Page<'_> {
    fn drop(&mut self) {
        if self.is_new
            && !self.is_written
            && let Err(error) = fs::remove_file(self.path)
        {
            eprintln!(
                "memtrace: removing {}: {}",
                self.path.display(),
                sentence::of_error(&error)
            );
        }
    }
}

/// Whether files can be made in a directory.
fn try_out(directory: &Path) -> std::io::Result<()> {
    let path = directory.join(format!(".memtrace-lab-{}", std::process::id()));
    File::create_new(&path)?;
    fs::remove_file(&path)
}
