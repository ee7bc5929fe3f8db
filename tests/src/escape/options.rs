//! The command line.

use std::path::PathBuf;

use super::cases::{self, Class};

/// How it is used.
pub const USAGE: &str = "usage: escape-conformance --class <unconfined|advisory|scoped|sealed> [flags]

  --class <CLASS>         the class graded; required
  --route <ROUTE>         shell, native-tool, wasm-guest or all (default all)
  --record-dir <DIR>      where the record is written (default .)
  --work-root <DIR>       scratch of every launch, kept
                          (default <record-dir>/escape-conformance-work-<stamp>)
  --mur <PATH>            a mur built with the feature escape-probe
                          (default $MUR_BIN, target/dist/probe/bin/mur, PATH)
  --python <NAME>         the interpreter of the shell route (default python3)
  --timeout-secs <N>      for each launch (default 300)
  --systemd-scope         start each launch in a delegated scope of the user's systemd
  --no-systemd-scope      do not (default: where that systemd runs)
  --allow-container       accepted; a container only makes the record not citable
  --only <CASE-ID>        this case only; repeatable; the record is partial
  --list-cases            print every case with every class's expectation, and run nothing

exit status: 0 all asserted cases matched, 1 usage or the harness could not go on, 2 refused before the first case,
3 a boundary case failed or proved nothing, 4 only resource cases failed
";

/// Which routes are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routes {
    /// Commands.
    Shell,
    /// Native tools.
    NativeTool,
    /// Guest workers, of each kind.
    WasmGuest,
    /// All.
    All,
}

/// A command line, read.
#[derive(Clone, Debug)]
pub struct Options {
    /// The class graded; absent only with `list_cases`.
    pub class: Option<Class>,
    /// Which routes.
    pub routes: Routes,
    /// Where the record goes.
    pub record_dir: PathBuf,
    /// Where launches are staged; chosen by the time otherwise.
    pub work_root: Option<PathBuf>,
    /// The binary; searched for otherwise.
    pub mur: Option<PathBuf>,
    /// The interpreter.
    pub python: String,
    /// Bound of each launch, seconds.
    pub timeout: u64,
    /// Whether launches run in a delegated scope; by the host otherwise.
    pub systemd_scope: Option<bool>,
    /// These cases only.
    pub only: Vec<String>,
    /// Print and run nothing.
    pub list_cases: bool,
    /// The command line itself, for the record.
    pub invocation: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            class: None,
            routes: Routes::All,
            record_dir: ".".into(),
            work_root: None,
            mur: None,
            python: "python3".to_owned(),
            timeout: 300,
            systemd_scope: None,
            only: Vec::new(),
            list_cases: false,
            invocation: String::new(),
        }
    }
}

impl Options {
    /// Reads a command line.
    ///
    /// # Errors
    /// In words, when it makes no sense.
    pub fn read(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let args: Vec<String> = args.into_iter().collect();
        let mut options = Self { invocation: args.join(" "), ..Self::default() };
        let mut args = args.into_iter();
        while let Some(flag) = args.next() {
            let (flag, mut given) = match flag.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (flag, None),
            };
            let mut value = || given.take().or_else(|| args.next()).ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--class" => {
                    let name = value()?;
                    let class = Class::ALL.into_iter().find(|class| class.as_str() == name);
                    options.class = Some(class.ok_or_else(|| format!("'{name}' is no class"))?);
                }
                "--route" => options.routes = route(&value()?)?,
                "--record-dir" => options.record_dir = value()?.into(),
                "--work-root" => options.work_root = Some(value()?.into()),
                "--mur" => options.mur = Some(value()?.into()),
                "--python" => options.python = value()?,
                "--timeout-secs" => {
                    let text = value()?;
                    options.timeout =
                        text.parse().ok().filter(|seconds| *seconds > 0).ok_or_else(|| {
                            format!("--timeout-secs must be a whole number of 1 or more; got '{text}'")
                        })?;
                }
                "--systemd-scope" => options.systemd_scope = Some(true),
                "--no-systemd-scope" => options.systemd_scope = Some(false),
                "--allow-container" => {}
                "--only" => {
                    let id = value()?;
                    cases::find(&id).ok_or_else(|| format!("'{id}' is no case; --list-cases prints them"))?;
                    options.only.push(id);
                }
                "--list-cases" => options.list_cases = true,
                other => return Err(format!("'{other}' is no flag")),
            }
            if given.is_some() {
                return Err(format!("{flag} takes no value"));
            }
        }
        if options.class.is_none() && !options.list_cases {
            return Err("--class is missing".to_owned());
        }
        Ok(options)
    }
}

fn route(name: &str) -> Result<Routes, String> {
    match name {
        "shell" => Ok(Routes::Shell),
        "native-tool" => Ok(Routes::NativeTool),
        "wasm-guest" => Ok(Routes::WasmGuest),
        "all" => Ok(Routes::All),
        other => Err(format!("'{other}' is no route")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Options, String> {
        Options::read(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn a_command_line_is_read_or_refused_in_words() {
        let options = read("--class=scoped --route wasm-guest --only syscall-bpf --only read-etc-shadow").unwrap();
        assert_eq!((options.class, options.routes), (Some(Class::Scoped), Routes::WasmGuest));
        assert_eq!(options.only, ["syscall-bpf", "read-etc-shadow"]);
        assert!(read("--list-cases").unwrap().list_cases);
        for (line, why) in [
            ("", "--class is missing"),
            ("--class", "--class needs a value"),
            ("--class tight", "'tight' is no class"),
            ("--class scoped --only no-such-case", "'no-such-case' is no case"),
            ("--class scoped --timeout-secs 0", "got '0'"),
            ("--class scoped --route hooks", "'hooks' is no route"),
            ("--class scoped --skip x", "'--skip' is no flag"),
            ("--class scoped --list-cases=1", "--list-cases takes no value"),
        ] {
            let said = read(line).unwrap_err();
            assert!(said.contains(why), "{line}: {said}");
        }
    }
}
