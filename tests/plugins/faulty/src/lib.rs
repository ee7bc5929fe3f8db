//! A store that does the wrong its configuration names: `{"fault": "…"}`. With `swapped` it holds one artifact, `name` and
//! `version`, announces `sha256` of it, and hands out the file `payload`, whatever that is.

use std::io::Read;

use mur_plugin_api::{About, ArtifactStore, ErrorKind, PluginError, StoreInfo, StoredEntry, export_plugin};

struct Faulty {
    fault: String,
    config: serde_json::Value,
}

impl Faulty {
    fn text(&self, key: &str) -> &str {
        self.config[key].as_str().unwrap_or_default()
    }

    /// The one artifact of `swapped`.
    fn swapped(&self) -> Result<StoredEntry, PluginError> {
        let payload = self.text("payload");
        let size = std::fs::metadata(payload).map_err(|error| PluginError::io(payload, &error))?.len();
        Ok(StoredEntry {
            name: self.text("name").into(),
            version: self.text("version").into(),
            platform: "".into(),
            sha256: self.text("sha256").into(),
            size,
            media_type: "application/zip".into(),
            metadata: "".into(),
        })
    }
}

/// A payload without an end.
struct Endless;

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        buffer.fill(b'x');
        Ok(buffer.len())
    }
}

impl ArtifactStore for Faulty {
    const ABOUT: About = About {
        summary: "does what its configuration says, wrongly",
        vendor: "the suites",
        config_schema: r#"{"type":"object","examples":[{"fault":"none"}]}"#,
    };

    fn open(config: &str) -> Result<Self, PluginError> {
        let config: serde_json::Value =
            serde_json::from_str(config).map_err(|error| PluginError::new(ErrorKind::Invalid, error.to_string()))?;
        let fault = config["fault"].as_str().unwrap_or("none").to_owned();
        match fault.as_str() {
            "panic-open" => panic!("cannot open\non purpose"),
            "panic-thread" => {
                let _ = std::thread::spawn(|| panic!("a thread of its own")).join();
            }
            _ => {}
        }
        Ok(Self { fault, config })
    }

    fn info(&self) -> Result<StoreInfo, PluginError> {
        Ok(StoreInfo { location: "nowhere".into(), writable: false })
    }

    fn find(&self, name: &str, version: &str, _platform: &str) -> Result<Option<StoredEntry>, PluginError> {
        if self.fault == "swapped" {
            let held = (name, version) == (self.text("name"), self.text("version"));
            return held.then(|| self.swapped()).transpose();
        }
        let name = match self.fault.as_str() {
            "panic-find" => panic!("cannot find on purpose"),
            "abort-find" => std::process::abort(),
            "hang-find" => loop {
                std::thread::park();
            },
            "none" | "panic-thread" => return Ok(None),
            "other-name" => "local/another",
            _ => name,
        };
        let sha256 = if self.fault == "no-digest" { "zz".to_owned() } else { "a".repeat(64) };
        Ok(Some(StoredEntry {
            name: name.into(),
            version: version.into(),
            platform: "".into(),
            sha256: sha256.into(),
            size: u64::MAX,
            media_type: "application/zip".into(),
            metadata: "".into(),
        }))
    }

    fn list(&self, _scope: &str) -> Result<Vec<StoredEntry>, PluginError> {
        if self.fault == "swapped" { Ok(vec![self.swapped()?]) } else { Ok(Vec::new()) }
    }

    fn read(&self, _entry: &StoredEntry) -> Result<Box<dyn Read + Send>, PluginError> {
        match self.fault.as_str() {
            "endless" => Ok(Box::new(Endless)),
            "swapped" => {
                let payload = self.text("payload");
                let file = std::fs::File::open(payload).map_err(|error| PluginError::io(payload, &error))?;
                Ok(Box::new(file))
            }
            // Other bytes than the digest it announced.
            "other-bytes" => Ok(Box::new(&b"other bytes"[..])),
            _ => Err(PluginError::new(ErrorKind::Missing, "it is not there")),
        }
    }

    fn write(&self, _entry: &StoredEntry, _payload: &mut dyn Read) -> Result<(), PluginError> {
        Err(PluginError::new(ErrorKind::Denied, "this store is read only"))
    }

    fn remove(&self, _name: &str, _version: &str) -> Result<bool, PluginError> {
        Err(PluginError::new(ErrorKind::Denied, "this store is read only"))
    }
}

export_plugin!(store "faulty", env!("CARGO_PKG_VERSION"), Faulty);
