//! Every code `mur` can print, in one table: the code, and what it means in one line.
//!
//! Numbers are never reused. The reference chapter of the book is checked against this table by a test.

use std::fmt;

/// One code of the table; printed as `E-XXX-nnn` or `W-XXX-nnn`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code {
    text: &'static str,
    meaning: &'static str,
}

impl Code {
    /// The code as printed.
    pub const fn as_str(self) -> &'static str {
        self.text
    }

    /// What it means, in one line without a full stop.
    pub const fn meaning(self) -> &'static str {
        self.meaning
    }

    /// Whether the code is a warning: warnings never change an exit status.
    pub fn is_warning(self) -> bool {
        self.text.starts_with('W')
    }

    /// Looks a code up by its printed text.
    pub fn find(text: &str) -> Option<Self> {
        TABLE.iter().copied().find(|code| code.text == text)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

macro_rules! codes {
    ($($name:ident $text:literal $meaning:literal;)*) => {
        $(#[doc = $meaning] pub const $name: Code = Code { text: $text, meaning: $meaning };)*

        /// Every code, in family and number order.
        pub const TABLE: &[Code] = &[$($name),*];
    };
}

codes! {
    E_BLD_001 "E-BLD-001" "artifact name invalid, or scoped";
    E_BLD_002 "E-BLD-002" "requires_files entry absolute, .., symlink, duplicate archive entry, or reserved (murmur-build.json, also in a skill folder)";
    E_BLD_003 "E-BLD-003" "no launchable wasm payload (none, or several root *.wasm without capsule.wasm)";
    E_BLD_004 "E-BLD-004" "retired inference_auth: block";
    E_BLD_005 "E-BLD-005" "models: malformed (max_output_tokens, context_window, optional max_input_tokens at most the window; integers 1 to 4294967295) or on a";
    E_CAP_001 "E-CAP-001" "capabilities.network.allow entry unparsable (entry, reason)";
    E_CAP_002 "E-CAP-002" "filesystem scope absolute or escaping (scope, reason); doctor warns";
    E_CAP_003 "E-CAP-003" "declared class above achieved (both, missing mechanism)";
    E_CAP_004 "E-CAP-004" "shell.staged_runtime below a sealed floor; doctor warns";
    E_CAP_005 "E-CAP-005" "needs the session's network namespace: now every capsule with any tool, driver or hook, as for a shell capsule; before any worker starts";
    E_CAP_006 "E-CAP-006" "sealed: an allowlisted script whose package tree nothing declared reaches (binary, path, interpreter); doctor warns";
    E_CAP_007 "E-CAP-007" "export root outside the workdir (field, declared, resolved)";
    E_CAP_008 "E-CAP-008" "exports.peer_files with after_task: sleep and no short enough max_ttl";
    E_CAP_009 "E-CAP-009" "state store name not one path segment, or store unavailable (store, path)";
    E_CAP_010 "E-CAP-010" "config: not a string-keyed mapping or too large as JSON";
    E_CAP_011 "E-CAP-011" "context.record_store or --context not one path segment";
    E_CAP_012 "E-CAP-012" "filesystem.read_only entry unusable";
    E_CAP_013 "E-CAP-013" "an artifact claims a runtime-provided tool name (name, reserved list)";
    E_CAP_014 "E-CAP-014" "doctor only, an error: a variable in the spawn closure is set nowhere";
    E_CAP_015 "E-CAP-015" "doctor error: a child declares an env.allow name its parent lacks";
    E_CAP_016 "E-CAP-016" "env.allow names a variable the credential backstop strips; doctor warns";
    E_CAP_017 "E-CAP-017" "gateway: on a native tool";
    E_CAP_018 "E-CAP-018" "gateway.endpoint with neither api_key nor keyless: true";
    E_CAP_019 "E-CAP-019" "process driver requires a variable env.allow lacks";
    E_CAP_020 "E-CAP-020" "two artifacts share a tool name (the part after /)";
    E_CFG_002 "E-CFG-002" "config set key unsupported, credential without -g, bad credential name";
    E_CFG_003 "E-CFG-003" "registry: in a config file unusable: removed key, repo not <owner>/<repo>, reserved scope, two sources for one scope";
    E_IDX_002 "E-IDX-002" "index is not a readable schema-2 index";
    E_IO_001 "E-IO-001" "file or directory not found (manifest, project root, skill source, SKILL.md, trace file)";
    E_IO_002 "E-IO-002" "host permission denied";
    E_IO_003 "E-IO-003" "any other I/O or argument failure: read/write, bad --containment or lifecycle flag, --deadline/--system-prompt without inference";
    E_IO_004 "E-IO-004" "HOME unset, not absolute, or ~/.murmur (or sessions, records in it) cannot hold directories; nothing written anywhere";
    E_MAN_001 "E-MAN-001" "required field missing";
    E_MAN_002 "E-MAN-002" "YAML syntax error";
    E_MAN_003 "E-MAN-003" "wrong type, or a value the runtime rejects: artifact entry or name, inference, capabilities, exports, control, network, lifecycle";
    E_NEW_002 "E-NEW-002" "formation name, or a derived capsule name, invalid";
    E_NEW_003 "E-NEW-003" "./<NAME> exists; nothing written";
    E_NEW_004 "E-NEW-004" "configured provider has no driver";
    E_NEW_005 "E-NEW-005" "--index local";
    E_NEW_006 "E-NEW-006" "index unreadable";
    E_NEW_007 "E-NEW-007" "no fitting driver version listed, or other scope";
    E_PLG_001 "E-PLG-001" "a plugin library is not pinned";
    E_PLG_002 "E-PLG-002" "a plugin library, its directory or its lock may be changed by others";
    E_PLG_003 "E-PLG-003" "a plugin library cannot be read or is no library";
    E_PLG_004 "E-PLG-004" "a plugin speaks another interface version";
    E_PLG_005 "E-PLG-005" "a plugin failed, panicked or overran its deadline";
    E_PLG_006 "E-PLG-006" "no plugin of that name or class is known";
    E_PLG_007 "E-PLG-007" "a plugin lock file cannot be read";
    E_REG_001 "E-REG-001" "artifact at that version in no place asked; no payload for this platform; no fitting version; repository missing; index and releases";
    E_REG_002 "E-REG-002" "bytes do not match the recorded sha256; packed name or version differs from the filed one; nothing stored";
    E_REG_003 "E-REG-003" "name and version already stored";
    E_REG_004 "E-REG-004" "reserved version latest, stable, edge";
    E_REG_005 "E-REG-005" "lock pins another version, payload shape or hash for the member's capsule";
    E_REG_006 "E-REG-006" "a source did not answer (rate limit, refused, unreachable): existence unknown, distinct from E-REG-001";
    E_REG_007 "E-REG-007" "a command-line name is not <scope>/<name>; reserved or invalid owner in github:";
    E_REG_008 "E-REG-008" "no source serves the scope";
    E_REG_009 "E-REG-009" "a source's index states another scope; nothing installed";
    E_REG_010 "E-REG-010" "GitHub owner id differs from the recorded one (lock entry, stored payload, or built in for murmur)";
    E_REG_011 "E-REG-011" "driver with a malformed models: table: the store refuses it";
    E_ROS_001 "E-ROS-001" "file missing or unreadable, not YAML, not a mapping, unknown key, wrong type, bad value; or --roster given a path that is neither a";
    E_ROS_002 "E-ROS-002" "no member, or several, with entry: true";
    E_ROS_003 "E-ROS-003" "two members share a name";
    E_ROS_004 "E-ROS-004" "a rule names no member";
    E_ROS_005 "E-ROS-005" "a member in some to does not declare exports.peer_tasks.accept: true";
    E_ROS_006 "E-ROS-006" "at least one edge and a member without network.authentication (first in roster order)";
    E_ROS_007 "E-ROS-007" "member not in either store, stored bytes not matching the recorded hash, archive or packed manifest unreadable";
    E_ROS_008 "E-ROS-008" "a rule lists the entry member in to";
    E_RUN_001 "E-RUN-001" "capsule trap, compile failure, missing component export, execution deadline, memory/table limit, refused tool data path";
    E_RUN_002 "E-RUN-002" "an import the runtime does not link (names the interface)";
    E_RUN_003 "E-RUN-003" "lock: unsupported lock_version, unreadable, no entry, version differs, no hash for this platform, malformed origin";
    E_RUN_004 "E-RUN-004" "no capsule.wasm and not exactly one root *.wasm (names candidates)";
    E_RUN_005 "E-RUN-005" "agent capsule without a driver";
    E_RUN_006 "E-RUN-006" "driver artifact not installed, or harness binary not found";
    E_RUN_007 "E-RUN-007" "agent loop failed";
    E_RUN_008 "E-RUN-008" "missing artifacts: <a@v>, ..., or --capsule not installed";
    E_RUN_009 "E-RUN-009" "system prompt file, compaction prompt file or prompt artifact unreadable";
    E_RUN_010 "E-RUN-010" "network.internal_port taken";
    E_RUN_011 "E-RUN-011" "subprocess killed for a capabilities.resources limit (binary, limit)";
    E_RUN_012 "E-RUN-012" "same capsules, no cgroup v2 scope can be delegated";
    E_RUN_013 "E-RUN-013" "work folder, home and temp together over workdir_max_bytes (both numbers)";
    E_RUN_014 "E-RUN-014" "sealed root could not be built after the probe passed";
    E_RUN_015 "E-RUN-015" "--resume with --context";
    E_RUN_016 "E-RUN-016" "resumed session has no task_start with a context id";
    E_RUN_017 "E-RUN-017" "resolved context kept no record";
    E_RUN_018 "E-RUN-018" "--resume-mode compact without an on-compaction hook";
    E_RUN_019 "E-RUN-019" "could not register with the spawn daemon; or empty spawn grant";
    E_RUN_020 "E-RUN-020" "MURMUR_SPAWNER not a spawner handle, or MURMUR_SPAWNER_LIFELINE not this session's lifeline";
    E_RUN_021 "E-RUN-021" "native tool built for another platform (name, both platforms)";
    E_RUN_022 "E-RUN-022" "address or frm_ id names nothing running (lists what is, or says none is)";
    E_RUN_023 "E-RUN-023" "the process lives, its door does not answer";
    E_RUN_024 "E-RUN-024" "session or formation could not be ended and still runs; trace rm of a running session; several launchers recorded";
    E_RUN_025 "E-RUN-025" "artifact with gateway: ships no usable upstream_auth: (reason)";
    E_RUN_026 "E-RUN-026" "machine spend ceiling set, ledger unusable";
    E_RUN_027 "E-RUN-027" "provider kept rejecting the credential after a re-read; message also in out/result.txt; task fails as credential_rejected";
    E_RUN_028 "E-RUN-028" "~/.murmur/running unreadable; nothing listed or removed";
    E_RUN_029 "E-RUN-029" "process driver exports no process interface, or a driver imports a stream interface not served";
    E_RUN_030 "E-RUN-030" "http driver exports the process interface";
    E_RUN_032 "E-RUN-032" "process driver not loadable without grants, or describes itself unusably";
    E_RUN_033 "E-RUN-033" "harness turn failed (kind: auth, quota, max-turns, ...)";
    E_RUN_034 "E-RUN-034" "a call into the process driver refused, trapped or timed out";
    E_RUN_035 "E-RUN-035" "harness silent for the whole window, killed";
    E_RUN_036 "E-RUN-036" "harness no longer holds the session a context names";
    E_RUN_037 "E-RUN-037" "--resume-mode compact under process transport";
    E_RUN_038 "E-RUN-038" "spend ceiling with a driver that reports no usage";
    E_RUN_039 "E-RUN-039" "--forget-session outside process transport";
    E_RUN_040 "E-RUN-040" "the session ran and its task ended failed, max_turns_reached, spend_ceiling_reached or canceled (not for formation_ended or";
    E_RUN_041 "E-RUN-041" "control token unwritable";
    E_RUN_042 "E-RUN-042" "mur control on a capsule without a control surface, or it refused";
    E_RUN_043 "E-RUN-043" "a pin pulled at run time is declared as hook, driver, with gateway: or as system-prompt artifact";
    E_RUN_044 "E-RUN-044" "MURMUR_FORMATION_ID not frm_ + 32 lowercase hex (blank is absent)";
    E_RUN_045 "E-RUN-045" "a peer did not come up";
    E_RUN_046 "E-RUN-046" "mur run --roster inside a member; MURMUR_FORMATION_PEERS in the environment; channel unreadable (any seed case); lifeline variable not this";
    E_RUN_047 "E-RUN-047" "installed bytes differ from the admitted sha256";
    E_RUN_048 "E-RUN-048" "mur token on a public door";
    E_RUN_049 "E-RUN-049" "unknown credential name";
    E_RUN_050 "E-RUN-050" "a runtime read, write, create or remove beneath a work folder or records directory met a link, hard link, non-regular file or non-plain path";
    E_RUN_051 "E-RUN-051" "--workdir is not the directory the parent made (or the identity argument is malformed)";
    E_RUN_052 "E-RUN-052" "a driver choice has no output cap, or its driver's models: table is malformed";
    E_RUN_053 "E-RUN-053" "session reached its deadline (own or inherited); or the formation's deadline fell before the entry member started; or a launch cannot";
    E_RUN_054 "E-RUN-054" "inference.compaction.max_tokens above the driver's ceiling";
    E_RUN_055 "E-RUN-055" "output or compaction cap leaves no input budget in the context window";
    E_RUN_065 "E-RUN-065" "a worker died, or did not answer well past its call's capabilities.limits.deadline_seconds; fails the task in flight and ends the run (exit";
    E_RUN_066 "E-RUN-066" "a worker could not be started; launch refused, nothing run";
    E_TRC_001 "E-TRC-001" "trace unreadable as JSON lines (<file>:<line>), empty, without session_start/session_end (commands other than show), bad --body/--turn";
    E_TRC_002 "E-TRC-002" "address matches none or several; malformed or unknown frm_ id (lists searched roots); wrong argument count; bad --since/--last";
    E_WIT_LEVEL_001 "E-WIT-LEVEL-001" "artifact names an interface version this mur does not serve";
    W_BLD_001 "W-BLD-001" "requires_files names an entry always packed (murmur.yaml, capsule.wasm)";
    W_BLD_002 "W-BLD-002" "capsule.wasm shadows another root *.wasm";
    W_BLD_003 "W-BLD-003" "compiled artifact packs build inputs (target/, Cargo.toml, Cargo.lock, *.rs)";
    W_REG_001 "W-REG-001" "native payload from the untagged store path; doctor warning, Fix: mur install <ref>";
    W_REG_002 "W-REG-002" "a capsule of the spawn closure could not be read; doctor warning";
    W_REG_003 "W-REG-003" "installed artifact does not fit the served level; doctor warning unless declared (then error)";
    W_ROS_001 "W-ROS-001" "mur run --roster: prefix [mur run] , stderr. doctor: two spaces, inside the Roster block, stdout";
    W_RUN_001 "W-RUN-001" "reply cut at inference.max_tokens; session still ok";
    W_RUN_002 "W-RUN-002" "harness version untested or unreadable";
    W_RUN_003 "W-RUN-003" "an alternate driver choice's credential is unresolved (choice, driver, model, name); staged unavailable";
    W_RUN_004 "W-RUN-004" "a tool's input_schema malformed for the required-field check; its calls go unchecked";
    W_RUN_007 "W-RUN-007" "member started by hand: formation id, no lifeline, not a delegated child; names the formation and mur stop";
    W_RUN_008 "W-RUN-008" "member with callees whose network.allow reaches no loopback http door at an unpinned port (no unpinned rule matching http://localhost)";
    W_RUN_009 "W-RUN-009" "driver table lists no limits for the model and context.max_tokens unset";
    W_SEC_001 "W-SEC-001" "subprocess route, no kernel sandbox (not Linux)";
    W_SEC_002 "W-SEC-002" "Linux without Landlock: filesystem and exec not enforced";
    W_SEC_003 "W-SEC-003" "bash allowlisted with a network allowlist nothing enforces for it";
    W_SEC_004 "W-SEC-004" "build: literal secret in a credential-shaped field (api_key, token, secret, password)";
    W_SEC_005 "W-SEC-005" "kernel tier in force: states what it covers";
    W_SEC_006 "W-SEC-006" "a hook's block declares a sub-key that does nothing on hooks";
    W_SEC_007 "W-SEC-007" "per-artifact network entry outside the capsule-wide ceiling: dropped";
    W_SEC_008 "W-SEC-008" "a tool's or driver's block declares something narrowing does not apply";
    W_SEC_009 "W-SEC-009" "shell.interpreter_runtime grant, one per grant";
    W_SEC_010 "W-SEC-010" "subprocess route without any cgroup (not Linux)";
    W_SEC_011 "W-SEC-011" "workdir_exec: true";
    W_SEC_012 "W-SEC-012" "sealed: compiler driver's helper without execute right";
    W_SEC_013 "W-SEC-013" "AppArmor on, unprivileged user namespaces open host-wide. Host-level: printed by the process the operator started, once; silenced by";
    W_SEC_014 "W-SEC-014" "capsule-wide capabilities.state grants nothing";
    W_SEC_015 "W-SEC-015" "config: on a native tool delivers nothing";
    W_SEC_016 "W-SEC-016" "capsule-wide capabilities.conversation grants nothing";
    W_SEC_017 "W-SEC-017" "read_only advisory for an allowlisted interpreter, one each";
    W_SEC_018 "W-SEC-018" "read_only with a tool whose schema marks no destinations, one each";
    W_SEC_019 "W-SEC-019" "same with prefix [murmur-artifact] ";
    W_SEC_021 "W-SEC-021" "scope made, io.max could not be applied (declared value, reason)";
    W_SEC_023 "W-SEC-023" "running record unwritable: unreachable by session address; session continues";
    W_SEC_024 "W-SEC-024" "credential-shaped env.allow name the backstop keeps, one each; a further clause when after_task resolves to sleep";
    W_SEC_025 "W-SEC-025" "network.allow names a gateway's host";
    W_SEC_027 "W-SEC-027" "key readable only at launch (literal, or environment only); names no value";
    W_SEC_028 "W-SEC-028" "a secret-holding path under ~/.murmur readable by others: path, mode, chmod";
    W_SEC_029 "W-SEC-029" "sealed: compiler driver could not be asked for helpers";
    W_SEC_030 "W-SEC-030" "a gateway other than the inference driver's: unmetered";
    W_SEC_031 "W-SEC-031" "process harness bills an API key";
    W_SEC_032 "W-SEC-032" "door off loopback (127.0.0.0/8, ::1, localhost) without authentication: address, callable methods, tools, shell, network, planes";
    W_SEC_033 "W-SEC-033" "~/.murmur/sessions or records inside the workdir: commands can change it; a scoped or sealed floor refuses with E-CAP-003 instead";
    W_SEC_034 "W-SEC-034" "class unconfined is in force: commands and workers run as the invoking user";
    W_SEC_035 "W-SEC-035" "class unconfined or advisory as root: user 0 without capabilities still reaches root's files";
}
