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
    E_BLD_001 "E-BLD-001" "an artifact's packed name breaks the rule for names, or carries a scope";
    E_BLD_002 "E-BLD-002" "a file listed in requires_files cannot be packed: outside the folder, a link, reserved, or listed twice";
    E_BLD_003 "E-BLD-003" "the folder holds no component to pack, or several without saying which";
    E_BLD_004 "E-BLD-004" "the manifest uses the retired key inference_auth";
    E_BLD_005 "E-BLD-005" "a models table is malformed, or stands in an artifact that is no driver";
    E_CAP_001 "E-CAP-001" "an entry of a network allow list is no destination";
    E_CAP_002 "E-CAP-002" "a filesystem scope is absolute or leads out of the work folder";
    E_CAP_003 "E-CAP-003" "the declared containment class is stronger than what this host can back";
    E_CAP_004 "E-CAP-004" "a staged runtime is declared below the class that stages it";
    E_CAP_005 "E-CAP-005" "the session's network or process namespace cannot be made";
    E_CAP_006 "E-CAP-006" "an allowed script needs files that no grant brings into the composed root";
    E_CAP_007 "E-CAP-007" "an exported folder lies outside the work folder";
    E_CAP_008 "E-CAP-008" "files are exported to peers for longer than a capsule that sleeps may offer them";
    E_CAP_009 "E-CAP-009" "a state store's name is no path segment, or its directory cannot be used";
    E_CAP_010 "E-CAP-010" "an artifact's config is no mapping with text keys, or too large";
    E_CAP_011 "E-CAP-011" "a record store or context is named by more than one path segment";
    E_CAP_012 "E-CAP-012" "a read-only path cannot be used";
    E_CAP_013 "E-CAP-013" "an artifact has the name of a tool the runtime itself answers";
    E_CAP_014 "E-CAP-014" "a variable that a spawned capsule needs is set nowhere";
    E_CAP_015 "E-CAP-015" "a child capsule asks for a variable its parent does not hand on";
    E_CAP_016 "E-CAP-016" "a variable that carries a provider's credential is named in env.allow";
    E_CAP_017 "E-CAP-017" "a native tool has a gateway, which only components can use";
    E_CAP_018 "E-CAP-018" "a gateway has neither a key nor the word that it needs none";
    E_CAP_019 "E-CAP-019" "a harness needs a variable that env.allow does not name";
    E_CAP_020 "E-CAP-020" "two artifacts would answer to the same tool name";
    E_CFG_002 "E-CFG-002" "a configuration key cannot be set, or not in that file";
    E_CFG_003 "E-CFG-003" "a configured artifact source is unusable";
    E_IDX_002 "E-IDX-002" "an artifact index cannot be read as one";
    E_IO_001 "E-IO-001" "a file or directory that is needed is not there";
    E_IO_002 "E-IO-002" "the host does not permit an operation";
    E_IO_003 "E-IO-003" "a file, an argument or a stream cannot be used";
    E_IO_004 "E-IO-004" "HOME cannot hold ~/.murmur";
    E_MAN_001 "E-MAN-001" "a manifest lacks its name or version";
    E_MAN_002 "E-MAN-002" "a manifest is no YAML, or a value in it is of the wrong type";
    E_MAN_003 "E-MAN-003" "a manifest holds a value that cannot be accepted";
    E_NEW_002 "E-NEW-002" "a new formation's name, or a capsule's name made from it, breaks the rule for names";
    E_NEW_003 "E-NEW-003" "something stands where the new formation would be written";
    E_NEW_004 "E-NEW-004" "the chosen provider has no driver";
    E_NEW_005 "E-NEW-005" "the word given for an index names none";
    E_NEW_006 "E-NEW-006" "the index given for a new formation cannot be read";
    E_NEW_007 "E-NEW-007" "no version of the driver fits, or none is to be found";
    E_PLG_001 "E-PLG-001" "a plugin library is neither pinned nor signed";
    E_PLG_002 "E-PLG-002" "a plugin library, its directory, or a file that decides about it may be changed by others";
    E_PLG_003 "E-PLG-003" "a plugin library cannot be read or is no library";
    E_PLG_004 "E-PLG-004" "a plugin speaks another interface version";
    E_PLG_005 "E-PLG-005" "a plugin failed, panicked or overran its deadline";
    E_PLG_006 "E-PLG-006" "no plugin of that name or class is known";
    E_PLG_007 "E-PLG-007" "a plugin lock or the list of trusted publishers cannot be read";
    E_PLG_008 "E-PLG-008" "a plugin's signature cannot be read, does not hold, or is of something else";
    E_PLG_009 "E-PLG-009" "a plugin is signed by a publisher who is not trusted";
    E_PLG_010 "E-PLG-010" "a publisher's name or key cannot be used";
    E_REG_001 "E-REG-001" "an artifact is in none of the places that were asked";
    E_REG_002 "E-REG-002" "an artifact's bytes or packed name are not what was recorded";
    E_REG_003 "E-REG-003" "that name and version is stored already";
    E_REG_004 "E-REG-004" "a version was given that names no particular one";
    E_REG_005 "E-REG-005" "the lock pins something other than what was found";
    E_REG_006 "E-REG-006" "an artifact source did not answer";
    E_REG_007 "E-REG-007" "a name on the command line lacks its scope or breaks the rule for names";
    E_REG_008 "E-REG-008" "no configured source serves that scope";
    E_REG_009 "E-REG-009" "a source's index is of another scope";
    E_REG_010 "E-REG-010" "a source belongs to another owner than before";
    E_REG_011 "E-REG-011" "a driver's table of models is malformed, so no store takes it";
    E_ROS_001 "E-ROS-001" "the roster cannot be read or does not have a roster's shape";
    E_ROS_002 "E-ROS-002" "the roster does not have exactly one entry member";
    E_ROS_003 "E-ROS-003" "two members of the roster have one name";
    E_ROS_004 "E-ROS-004" "a rule of the roster names nobody";
    E_ROS_005 "E-ROS-005" "a member is called by a rule and takes no tasks from peers";
    E_ROS_006 "E-ROS-006" "the roster has edges and a member's door asks nobody who they are";
    E_ROS_007 "E-ROS-007" "a member's capsule cannot be taken from the stores";
    E_ROS_008 "E-ROS-008" "a rule of the roster calls the entry member";
    E_ROS_009 "E-ROS-009" "the roster has no member of that name";
    E_RUN_001 "E-RUN-001" "a component failed, did not compile, or crossed one of its limits";
    E_RUN_002 "E-RUN-002" "a component imports something this host does not provide";
    E_RUN_003 "E-RUN-003" "the lock cannot be read, or lacks what this launch needs";
    E_RUN_004 "E-RUN-004" "a script capsule has no component, or several to choose from";
    E_RUN_005 "E-RUN-005" "an agent capsule names no driver";
    E_RUN_006 "E-RUN-006" "the driver is not installed, or its harness is not found";
    E_RUN_007 "E-RUN-007" "the agent loop failed";
    E_RUN_008 "E-RUN-008" "the capsule or artifacts it declares are not installed";
    E_RUN_009 "E-RUN-009" "a system prompt cannot be read";
    E_RUN_010 "E-RUN-010" "the port asked for is taken";
    E_RUN_011 "E-RUN-011" "a command was ended for a resource limit";
    E_RUN_012 "E-RUN-012" "no cgroup scope can be had for the session";
    E_RUN_013 "E-RUN-013" "the session's folders outgrew their limit";
    E_RUN_014 "E-RUN-014" "the composed root could not be built although the probe said so";
    E_RUN_015 "E-RUN-015" "a resumed session and a context were both named";
    E_RUN_016 "E-RUN-016" "the session to be resumed ran no task with a context";
    E_RUN_017 "E-RUN-017" "the context to be resumed kept no record";
    E_RUN_018 "E-RUN-018" "resuming compacted needs a hook that compacts";
    E_RUN_019 "E-RUN-019" "the session may delegate and cannot";
    E_RUN_020 "E-RUN-020" "the spawner's variables are not what a spawner sets";
    E_RUN_021 "E-RUN-021" "a native tool is built for another platform";
    E_RUN_022 "E-RUN-022" "an address names nothing that runs";
    E_RUN_023 "E-RUN-023" "a session's process lives and its door does not answer";
    E_RUN_024 "E-RUN-024" "something that runs could not be ended, or must not be removed";
    E_RUN_025 "E-RUN-025" "an artifact with a gateway does not say how its key is sent";
    E_RUN_026 "E-RUN-026" "the spend ledger cannot be used although a ceiling is set";
    E_RUN_027 "E-RUN-027" "the provider keeps refusing the credential";
    E_RUN_028 "E-RUN-028" "the directory of running sessions cannot be read";
    E_RUN_029 "E-RUN-029" "a driver does not offer the interface its transport needs";
    E_RUN_030 "E-RUN-030" "a driver offers the other transport's interface";
    E_RUN_032 "E-RUN-032" "a harness driver cannot describe itself";
    E_RUN_033 "E-RUN-033" "a harness ended its turn in failure";
    E_RUN_034 "E-RUN-034" "a call into a harness driver failed";
    E_RUN_035 "E-RUN-035" "a harness said nothing for too long and was ended";
    E_RUN_036 "E-RUN-036" "a harness has forgotten the session a context names";
    E_RUN_037 "E-RUN-037" "compacted resuming is not for a harness";
    E_RUN_038 "E-RUN-038" "a spend ceiling is set and the driver does not count";
    E_RUN_039 "E-RUN-039" "forgetting a harness session is only for harnesses";
    E_RUN_040 "E-RUN-040" "the session ran, and its task did not complete";
    E_RUN_041 "E-RUN-041" "the control token cannot be written";
    E_RUN_042 "E-RUN-042" "a session has no control surface, or it refused";
    E_RUN_043 "E-RUN-043" "an artifact pulled at run time is declared in a role it may not have";
    E_RUN_044 "E-RUN-044" "MURMUR_FORMATION_ID is no formation id";
    E_RUN_045 "E-RUN-045" "a member of a formation did not come up";
    E_RUN_046 "E-RUN-046" "a process was not handed its place in a formation as a launcher does it";
    E_RUN_047 "E-RUN-047" "an installed capsule changed since it was admitted";
    E_RUN_048 "E-RUN-048" "a public door has no tokens";
    E_RUN_049 "E-RUN-049" "a door has no credential of that name";
    E_RUN_050 "E-RUN-050" "something other than a plain file stood where the runtime was to read or write";
    E_RUN_051 "E-RUN-051" "a work folder is not the one that was made for this session";
    E_RUN_052 "E-RUN-052" "no output cap is known for a model";
    E_RUN_053 "E-RUN-053" "the deadline was reached";
    E_RUN_054 "E-RUN-054" "the compaction's output cap is above the driver's ceiling";
    E_RUN_055 "E-RUN-055" "an output cap leaves no room for input";
    E_RUN_065 "E-RUN-065" "a guest worker was lost while it was needed";
    E_RUN_066 "E-RUN-066" "a guest worker could not be started";
    E_TRC_001 "E-TRC-001" "a trace cannot be read, or lacks what was asked of it";
    E_TRC_002 "E-TRC-002" "an address names no recorded session, or several";
    E_WIT_LEVEL_001 "E-WIT-LEVEL-001" "an artifact uses an interface version this host does not serve";
    W_BLD_001 "W-BLD-001" "a file that is always packed is listed again";
    W_BLD_002 "W-BLD-002" "a component is packed beside another that is ignored";
    W_BLD_003 "W-BLD-003" "sources or build products are packed with a compiled artifact";
    W_BLD_004 "W-BLD-004" "a manifest being packed names a runtime that is no kind of artifact";
    W_REG_001 "W-REG-001" "a native artifact is stored without its platform";
    W_REG_002 "W-REG-002" "a capsule that may be spawned could not be read";
    W_REG_003 "W-REG-003" "an installed artifact does not fit what this host serves";
    W_REG_004 "W-REG-004" "an installed capsule is not what its source would build";
    W_ROS_001 "W-ROS-001" "a member may be called by more members than it holds tasks";
    W_RUN_001 "W-RUN-001" "a reply was cut at its output cap";
    W_RUN_002 "W-RUN-002" "a harness version has not been tested";
    W_RUN_003 "W-RUN-003" "the key of an alternate driver choice is not to be found";
    W_RUN_004 "W-RUN-004" "a tool's input schema is malformed, so its calls go unchecked";
    W_RUN_007 "W-RUN-007" "a formation member was started by hand, and nothing will end it with the formation";
    W_RUN_008 "W-RUN-008" "a member may call others and its network grant reaches no door";
    W_RUN_009 "W-RUN-009" "no limits are known for a model";
    W_SEC_001 "W-SEC-001" "commands run without a kernel sandbox on this system";
    W_SEC_002 "W-SEC-002" "files and programs are not held by the kernel on this host";
    W_SEC_003 "W-SEC-003" "a shell is allowed beside network rules that nothing enforces for it";
    W_SEC_004 "W-SEC-004" "a manifest being packed holds what looks like a secret";
    W_SEC_005 "W-SEC-005" "which kernel mechanisms are in force, and for what";
    W_SEC_006 "W-SEC-006" "a hook's grants name something that does nothing on a hook";
    W_SEC_007 "W-SEC-007" "an artifact's network entry lies outside what the capsule may reach";
    W_SEC_008 "W-SEC-008" "an artifact's grants name something that narrows nothing";
    W_SEC_009 "W-SEC-009" "an interpreter may read a directory of the host";
    W_SEC_010 "W-SEC-010" "commands run without a cgroup on this system";
    W_SEC_011 "W-SEC-011" "files in the work folder may be executed, which weakens the class";
    W_SEC_012 "W-SEC-012" "a compiler's helper program cannot be executed in the composed root";
    W_SEC_013 "W-SEC-013" "user namespaces are open to every program of this host";
    W_SEC_014 "W-SEC-014" "a state grant stands where it grants nothing";
    W_SEC_015 "W-SEC-015" "a native tool's config reaches nobody";
    W_SEC_016 "W-SEC-016" "a conversation grant stands where it grants nothing";
    W_SEC_017 "W-SEC-017" "read-only paths are not seen through by an allowed interpreter";
    W_SEC_018 "W-SEC-018" "read-only paths are not checked for a tool that names no destinations";
    W_SEC_019 "W-SEC-019" "a manifest key is not known and was ignored";
    W_SEC_021 "W-SEC-021" "a limit on disk traffic could not be applied";
    W_SEC_023 "W-SEC-023" "the running record cannot be written, so the session has no address";
    W_SEC_024 "W-SEC-024" "a variable whose name reads like a secret's is handed on";
    W_SEC_025 "W-SEC-025" "a network rule names a gateway's host, which needs none";
    W_SEC_027 "W-SEC-027" "a key is read once at launch and cannot be changed later";
    W_SEC_028 "W-SEC-028" "a file or folder that holds secrets can be read by others";
    W_SEC_029 "W-SEC-029" "a compiler could not be asked for its helpers";
    W_SEC_030 "W-SEC-030" "what goes through a gateway other than the driver's is not metered";
    W_SEC_031 "W-SEC-031" "a harness bills an API key";
    W_SEC_032 "W-SEC-032" "a door is open to other hosts and asks nobody who they are";
    W_SEC_033 "W-SEC-033" "commands of the session can change its records";
    W_SEC_034 "W-SEC-034" "class unconfined is in force: commands and workers run as the invoking user";
    W_SEC_035 "W-SEC-035" "class unconfined or advisory as root: user 0 without capabilities still reaches root's files";
    W_SEC_036 "W-SEC-036" "members that may call each other run under a class in which processes of one user can read their door tokens";
    W_SEC_037 "W-SEC-037" "the entry member's tools could rewrite what its own project directory installs from";
    W_SEC_038 "W-SEC-038" "an allowed program is not to be found, or can only fail";
}
