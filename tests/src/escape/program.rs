//! A run from its command line to its exit status.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;

use super::cases::{Category, Class, Route};
use super::grade::Graded;
use super::host::{self, Host};
use super::launch::Bench;
use super::listeners::Listeners;
use super::options::Options;
use super::record::{self, Record};
use super::routes;
use super::stage::{Capsule, Stage};

/// How a run ended.
#[derive(Debug)]
pub struct Summary {
    /// The exit status.
    pub status: u8,
    /// What there is to say.
    pub said: String,
    /// The record's page, where one was written.
    pub record: Option<PathBuf>,
    /// The cases.
    pub graded: Vec<Graded>,
}

/// Why there is no record.
enum Stop {
    /// Status 1.
    Broken(String),
    /// Status 2: before the first case.
    Refused(String),
}

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self::Broken(why)
    }
}

/// Runs it.
pub fn run(options: &Options) -> Summary {
    if options.list_cases {
        return Summary { status: 0, said: record::expectations(), record: None, graded: Vec::new() };
    }
    let Some(class) = options.class else {
        return Summary { status: 1, said: "--class is missing".into(), record: None, graded: Vec::new() };
    };
    match graded(options, class) {
        Ok(summary) => summary,
        Err(Stop::Broken(why)) => Summary { status: 1, said: why, record: None, graded: Vec::new() },
        Err(Stop::Refused(why)) => {
            Summary { status: 2, said: format!("refused: {why}"), record: None, graded: Vec::new() }
        }
    }
}

fn graded(options: &Options, class: Class) -> Result<Summary, Stop> {
    let at = OffsetDateTime::now_utc();
    let mur = find(options).ok_or_else(|| {
        Stop::Refused(
            "there is no mur: build one with 'cargo xtask dist --escape-probe', or name one with --mur".into(),
        )
    })?;
    let host = Host::look(&mur).map_err(Stop::Refused)?;
    let wanted = routes::wanted(options.routes);
    if wanted.iter().any(|route| route.worker().is_some()) && !host.has_probe() {
        let why = format!(
            "{} was built without the feature escape-probe: see 'cargo xtask dist --escape-probe'",
            mur.display()
        );
        return Err(Stop::Refused(why));
    }
    if wanted.contains(&Route::Shell) && host::which(&options.python, super::stage::PATH).is_none() {
        return Err(Stop::Refused(format!("there is no '{}' on the path", options.python)));
    }
    let bench = bench(options, mur, at)?;
    let scope = achieved(&bench, class, wanted[0])?;
    for route in &wanted {
        routes::preflight(&bench, class, *route).map_err(|why| Stop::Refused(format!("preflight: {why}")))?;
    }
    let mut all = Vec::new();
    for route in &wanted {
        all.extend(routes::measure(&bench, class, *route, &options.only)?);
    }
    let record = Record { at, class, options, host: &host, scope: &scope, graded: &all };
    let page = record.write(&options.record_dir).map_err(|fault| format!("the record cannot be written: {fault}"))?;
    let fails = |category| all.iter().any(|one| one.category() == category && one.fails(host.euid));
    let status = match (fails(Category::Boundary), fails(Category::Resource)) {
        (true, _) => 3,
        (false, true) => 4,
        (false, false) => 0,
    };
    Ok(Summary { status, said: said(&all, host.euid, &page), record: Some(page), graded: all })
}

/// The binary: a bare `target/<profile>/mur` has no plugins beside it, so the assembled one is looked for.
fn find(options: &Options) -> Option<PathBuf> {
    let named = options.mur.clone().or_else(|| std::env::var_os("MUR_BIN").map(PathBuf::from));
    let found = match named {
        Some(named) => Some(named),
        None => {
            let assembled = PathBuf::from("target/dist/probe/bin/mur");
            if assembled.is_file() {
                Some(assembled)
            } else {
                std::env::var("PATH").ok().and_then(|path| host::which("mur", &path))
            }
        }
    };
    found.filter(|path| path.is_file()).and_then(|path| path.canonicalize().ok())
}

fn bench(options: &Options, mur: PathBuf, at: OffsetDateTime) -> Result<Bench, Stop> {
    let root = options
        .work_root
        .clone()
        .unwrap_or_else(|| options.record_dir.join(format!("escape-conformance-work-{}", record::stamp(at))));
    super::stage::make_private(&root)?;
    let root = root.canonicalize().map_err(|fault| format!("{}: {fault}", root.display()))?;
    let stage = Stage::new(mur, &root, &options.python)?;
    let listeners = Listeners::open(&root).map_err(|fault| format!("the harness cannot listen: {fault}"))?;
    Ok(Bench {
        stage,
        listeners,
        timeout: Duration::from_secs(options.timeout),
        systemd_scope: options.systemd_scope.unwrap_or_else(host::has_user_systemd),
    })
}

/// What `mur` says it achieves here of the class.
fn achieved(bench: &Bench, class: Class, route: Route) -> Result<Value, Stop> {
    let capsule = Capsule::new(route, class);
    bench.stage.capsule(&capsule)?;
    let mut command = bench.stage.mur(Path::new(&bench.stage.root));
    command.args(["run", "--capsule", &format!("local/{}", capsule.name()), "--capsule-version", "0.1.0"]);
    command.args(["--explain-scope", "--json"]);
    if class == Class::Unconfined {
        command.args(["--containment", "unconfined"]);
    }
    let output = command.output().map_err(|fault| Stop::Broken(format!("mur: {fault}")))?;
    let scope: Value = serde_json::from_slice(&output.stdout).map_err(|_| {
        Stop::Refused(format!("mur does not explain the class: {}", String::from_utf8_lossy(&output.stderr)))
    })?;
    let found = scope["achieved_containment"].as_str().unwrap_or("nothing");
    // A host that backs Landlock runs scoped where advisory is the floor: what is asked for is a floor.
    if Class::ALL.iter().find(|one| one.as_str() == found).is_none_or(|found| *found < class) {
        let why = scope["shortfall_reason"].as_str().unwrap_or("no reason is given");
        return Err(Stop::Refused(format!("declared class {}, achieved {found}: {why}", class.as_str())));
    }
    Ok(scope)
}

fn said(graded: &[Graded], euid: u32, page: &Path) -> String {
    let mut lines = Vec::new();
    for category in [Category::Boundary, Category::Resource] {
        let counts = record::count(graded, category);
        lines.push(format!(
            "{}: {} asserted, {} passed, {} failed, {} recorded but not asserted, {} unattributed",
            category.as_str(),
            counts.asserted,
            counts.passed,
            counts.failed,
            counts.recorded,
            counts.unattributed
        ));
    }
    for one in graded.iter().filter(|one| one.fails(euid)) {
        lines.push(format!(
            "{} {} on {}: expected {}, got {} ({})",
            one.result.as_str(),
            one.id,
            one.route.as_str(),
            one.expected.as_str(),
            one.seen.verdict.as_str(),
            one.seen.detail
        ));
    }
    lines.push(format!("record: {}", page.display()));
    lines.join("\n")
}
