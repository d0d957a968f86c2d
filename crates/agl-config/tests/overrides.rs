//! The override grammar, interpolations, and the command line beyond the recordings.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use agl_config::cli::{self, Command, Refusal};
use agl_config::{
    Action, Config, ControllerConfig, Element, Origin, Override, OverrideValue, Program, Quote, ServerConfig,
    Surroundings, effective, escaped, quoted, to_yaml,
};
use proptest::prelude::*;

/// The value of `k=TEXT` in YAML's flow style, or what is wrong.
fn parsed(text: &str) -> String {
    let change = match Override::parse(&format!("k={text}")) {
        Ok(change) => change,
        Err(error) => return format!("error: {}", error.problem.lines().next().unwrap_or_default()),
    };
    match change.value.unwrap() {
        OverrideValue::One(element) => serde_json::to_string(&element.to_value().unwrap()).unwrap(),
        OverrideValue::Sweep(sweep) => match sweep.values(&["one".into(), "two".into()]) {
            Ok(values) => {
                format!("sweep {}", values.iter().map(Element::to_override_text).collect::<Vec<_>>().join(" "))
            }
            Err(problem) => format!("sweep: {problem}"),
        },
    }
}

#[test]
fn values() {
    let table = [
        ("", r#""""#),
        ("1", "1"),
        ("1_000", "1000"),
        ("0123", r#""0123""#),
        ("1.", "1.0"),
        ("1e4", "10000.0"),
        ("127.0.0.1", r#""127.0.0.1""#),
        ("TrUe", "true"),
        ("yes", r#""yes""#),
        ("NULL", "null"),
        ("None", r#""None""#),
        ("infinity", r#""infinity""#),
        ("  padded  ", r#""padded""#),
        ("a b", r#""a b""#),
        (r"a\,b\=c\:d\ ", r#""a,b=c:d ""#),
        (r"a\b", r#""a\\b""#),
        ("'a,b'", r#""a,b""#),
        (r"'it\'s'", r#""it's""#),
        (r"'a\\'", r#""a\\""#),
        (r"'a\nb'", r#""a\\nb""#),
        ("http://h:80/x", r#""http://h:80/x""#),
        ("[]", "[]"),
        ("[ a , [1,'2'] ]", r#"["a",[1,"2"]]"#),
        ("{a: 1, b: {c: [x]}}", r#"{"a":1,"b":{"c":["x"]}}"#),
        ("p${port}q", r#""p${port}q""#),
        ("int('12')", "12"),
        ("int([1.5,true])", "[1,1]"),
        ("str(5)", r#""5""#),
        ("float(3)", "3.0"),
        ("bool(0)", "false"),
        ("bool(value='TRUE')", "true"),
        ("sort([3,1,2],reverse=true)", "[3,2,1]"),
        ("sort(b,a)", "sweep a b"),
        ("a,'b',3", "sweep a 'b' 3"),
        ("range(1,4)", "sweep 1 2 3"),
        ("range(4,1,-1)", "sweep 4 3 2"),
        ("range(0,1,0.5)", "sweep 0.0 0.5"),
        ("int(range(1.5,3.5))", "sweep 1 2"),
        ("choice(a,[b])", "sweep a [b]"),
        ("tag(t,choice(a))", "sweep a"),
        ("glob(*,exclude=t*)", "sweep one"),
        ("range(1,2,0)", "sweep: the step of a range can't be 0"),
        ("interval(0,1)", "sweep: an interval has no list of values; use range(start,stop,step)"),
    ];
    for (text, expected) in table {
        assert_eq!(parsed(text), expected, "{text}");
    }
}

#[test]
fn what_does_not_parse() {
    let table = [
        ("a=b", "unexpected `=`"),
        ("sk-abc==", "unexpected `=`"),
        ("it's", "the quote ' is never closed"),
        ("'open", "the quote ' is never closed"),
        ("a!b", "`!` needs quotes"),
        ("é", "`é` needs quotes"),
        ("[a", "it ends too early, expected `,` or `]`"),
        ("{a:1", "it ends too early, expected `,` or `}`"),
        ("{a}", "unexpected `}`, expected `:`"),
        ("[a,]", "unexpected `]`, expected a value"),
        ("a(b)", "while evaluating 'a(b)': Unknown function 'a'"),
        ("int(x)", "while evaluating 'int(x)': Cannot cast 'x' to int"),
        ("int()", "while evaluating 'int()': No positional args or value specified"),
        ("sort(1,a)", "while evaluating 'sort(1,a)': only numbers, or only texts, can be sorted"),
        ("${port", "unexpected `{`"),
    ];
    for (text, expected) in table {
        assert_eq!(parsed(text), format!("error: {expected}"), "{text}");
    }
    let deep = format!("k={}", "[".repeat(1000));
    assert!(Override::parse(&deep).unwrap_err().problem.contains("nested deeper"));
}

#[test]
fn keys_and_actions() {
    let check = |text: &str, action: Action, key: &str, package: Option<&str>| {
        let change = Override::parse(text).unwrap();
        assert_eq!((change.action, change.key.as_str(), change.package.as_deref()), (action, key, package), "{text}");
    };
    check("a.b=1", Action::Change, "a.b", None);
    check("+a=1", Action::Add, "a", None);
    check("++a=1", Action::Force, "a", None);
    check("~a", Action::Delete, "a", None);
    check("~a.0.b=1", Action::Delete, "a.0.b", None);
    check("db/sub@x.y=big", Action::Change, "db/sub", Some("x.y"));
    check("$a-b=1", Action::Change, "$a-b", None);
    for text in ["a", "", "a b=1", "a.=1", ".a=1", "a =1", "a/=1", "---a=1"] {
        assert!(Override::parse(text).is_err(), "{text}");
    }
}

fn here(variables: &[(&str, &str)]) -> Surroundings {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Surroundings { variables, folder: "/nowhere".into(), now_s: 0 }
}

/// `a: {b: 1, c: text}, l: [1, {z: 5}], k: TEXT`, resolved: the value of `k`, or the first line of the error.
fn resolved(text: &str) -> String {
    let tree = serde_json::json!({ "a": { "b": 1, "c": "text" }, "l": [1, { "z": 5 }], "name": "b" });
    let mut config = Config::from_defaults(&tree).unwrap();
    let change = format!("+k={}", quoted(text, Quote::Single));
    let result = config.apply_overrides(&[change]).map_err(|error| error.to_string());
    let result =
        result.and_then(|()| config.resolve_in(&here(&[("SET", "from ${a}")])).map_err(|error| error.to_string()));
    match result {
        Ok(root) => serde_json::to_string(&root.get("k").unwrap().value).unwrap(),
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn interpolations() {
    let table = [
        ("${a.b}", "1"),
        ("${a[c]}", r#""text""#),
        ("${l.1.z}${l[0]}", r#""51""#),
        ("${.a.b}", "1"),
        ("${a.${name}}", "1"),
        ("${a}", r#"{"b":1,"c":"text"}"#),
        ("x${a}", r#""x{'b': 1, 'c': 'text'}""#),
        (r"\${a.b}", r#""${a.b}""#),
        (r"\\${a.b}", r#""\\1""#),
        ("${oc.env:SET}", r#""from ${a}""#),
        ("${oc.env:UNSET,8080}", r#""8080""#),
        ("${oc.env:UNSET,null}", "null"),
        ("${oc.env:UNSET,'a, b'}", r#""a, b""#),
        ("${oc.decode:${oc.env:UNSET,8080}}", "8080"),
        ("${oc.decode:'[1,{a: x}]'}", r#"[1,{"a":"x"}]"#),
        ("${oc.create:{a: 1}}", r#"{"a":1}"#),
        ("${oc.select:nope,7}", "7"),
        ("${oc.dict.keys:a}", r#"["b","c"]"#),
        ("${oc.dict.values:a}", r#"[1,"text"]"#),
        ("${now:%Y-%m-%d}", r#""1970-01-01""#),
    ];
    for (text, expected) in table {
        assert_eq!(resolved(text), expected, "{text}");
    }
    let errors = [
        ("${a.x}", "Interpolation key 'a.x' not found"),
        ("${k}", "Recursive interpolation detected"),
        (
            "${oc.env:UNSET}",
            "Environment variable 'UNSET' not found; set it, or give a default: ${oc.env:UNSET,default}",
        ),
        ("${oc.evn:A}", "Unsupported interpolation type oc.evn; did you mean `oc.env`?"),
        ("${oc.env:A,B,C}", "1 argument(s) too many"),
        ("${a.b", "ends too early, expected `}` or `:`"),
        ("${oc.env:A,it's}", "unexpected `'` after `${oc.env:A,it`"),
    ];
    for (text, expected) in errors {
        let error = resolved(text);
        assert!(error.starts_with("error: ") && error.contains(expected), "{text}\nwant {expected}\ngot  {error}");
    }
}

#[test]
fn interpolations_cannot_explode() {
    let mut tree = serde_json::Map::from_iter([("v0".to_owned(), "0123456789".into())]);
    for level in 1..60 {
        let below = format!("${{v{0}}}${{v{0}}}${{v{0}}}${{v{0}}}", level - 1);
        tree.insert(format!("v{level}"), below.into());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    std::fs::write(&path, serde_json::to_string(&tree).unwrap()).unwrap();
    let error = agl_config::load_file(&path).unwrap().resolve().unwrap_err().to_string();
    assert!(error.contains("stand for more than"), "{error}");
}

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(ToString::to_string).collect()
}

fn server(line: &[&str], surroundings: &Surroundings) -> Result<cli::Job<ServerConfig>, Refusal> {
    match cli::command::<ServerConfig>(&words(line), surroundings)? {
        Command::Run { mut jobs, .. } => Ok(jobs.remove(0)),
        Command::Show(text) => panic!("it prints {text}"),
    }
}

#[test]
fn the_key_comes_from_the_best_place() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key.txt"), "from-file\n").unwrap();
    let mut surroundings = here(&[("AGL_KEY", "from-env")]);
    surroundings.folder = folder.path().to_owned();
    let key = |line: &[&str]| server(line, &surroundings).unwrap().settings.key.map(|key| key.expose().to_owned());
    assert_eq!(key(&[]).as_deref(), Some("from-env"));
    assert_eq!(key(&["key=given"]).as_deref(), Some("given"));
    assert_eq!(key(&["key_file=key.txt"]).as_deref(), Some("from-file"));
    assert_eq!(key(&["key="]), None, "asked for no key");
    assert_eq!(key(&["key=false"]), None);

    let error = server(&["key_file=nope.txt"], &surroundings).unwrap_err();
    assert!(error.message.contains("nope.txt") && error.exit_code == 1, "{error}");
    let controller = cli::command::<ControllerConfig>(&words(&[]), &surroundings).unwrap();
    let Command::Run { jobs, .. } = controller else { panic!("it prints") };
    assert_eq!(jobs[0].settings.agl_server.key.as_ref().unwrap().expose(), "from-env");
}

#[test]
fn every_setting_knows_where_it_came_from() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("my.yaml"), "defaults: [server, _self_]\nport: 1\nhost: a\n").unwrap();
    let mut surroundings = here(&[("AGL_KEY", "hunter2")]);
    surroundings.folder = folder.path().to_owned();
    let line = ["--config-dir", ".", "--config-name", "my", "host=b", "limits.max_body_bytes=5"];
    let job = server(&line, &surroundings).unwrap();
    let settings = effective(&job.settings, &job.config).unwrap();
    let origin = |key: &str| settings.iter().find(|setting| setting.key == key).unwrap().origin.clone();
    assert_eq!(origin("host"), Origin::CommandLine);
    assert_eq!(origin("limits.max_body_bytes"), Origin::CommandLine);
    assert!(
        matches!(origin("port"), Origin::File { path, line: 2, column: 1 } if path.ends_with(Path::new("my.yaml")))
    );
    assert_eq!(origin("default_proxy.model_name"), Origin::Default);
    assert_eq!(origin("upstream.max_attempts"), Origin::Default);
    assert_eq!(origin("key"), Origin::Environment { variable: "AGL_KEY".to_owned() });
    let shown = serde_json::to_string(&settings).unwrap() + &format!("{:?}", job.settings);
    assert!(shown.contains("***") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn nothing_is_written_unless_asked_for() {
    assert_eq!(server(&["key=hunter2"], &here(&[])).unwrap().output, None);
    let folder = tempfile::tempdir().unwrap();
    let mut surroundings = here(&[]);
    surroundings.folder = folder.path().to_owned();
    let job = server(&["key=hunter2", "hydra.run.dir=run_${port}", "port=7"], &surroundings).unwrap();
    job.output.unwrap().write().unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join("run_7/.hydra").join(name)).unwrap();
    assert_eq!(read("overrides.yaml"), "- key=***\n- port=7\n");
    assert!(read("config.yaml").contains("port: 7\nkey: '***'\n"), "{}", read("config.yaml"));
    assert!(read("hydra.yaml").contains("dir: run_${port}"));
    assert!(!(read("hydra.yaml") + &read("config.yaml")).contains("hunter2"));
}

#[test]
fn our_own_keys_need_no_plus_and_stay_out_of_sight() {
    let job =
        server(&["default_proxy.allow_streaming=no", "log.format=json", "upstream={max_attempts: 2}"], &here(&[]))
            .unwrap();
    assert!(!job.settings.default_proxy.allow_streaming);
    assert_eq!(job.settings.upstream.max_attempts, 2);
    assert!(server(&[], &here(&[])).unwrap().settings.default_proxy.allow_streaming);
    let error = server(&["default_proxy.alow_streaming=no"], &here(&[])).unwrap_err();
    assert!(error.message.contains("did you mean `allow_streaming`?"), "{error}");
    let Command::Show(text) = cli::compose_command(Program::Server, &words(&["--cfg", "job"]), &here(&[])).unwrap()
    else {
        panic!("it runs");
    };
    assert!(!text.contains("allow_streaming"));
}

#[test]
fn values_of_the_wrong_type_are_refused_with_key_and_reason() {
    let table = [
        ("port=abc", "`port=abc`: must be a whole number"),
        ("default_proxy.include_log_probs=maybe", "`default_proxy.include_log_probs=maybe`: must be true or false"),
        ("default_proxy.train.temperature=-1", "must be 0 (always the likeliest token), or a positive finite number"),
        ("log.format=yaml", "`log.format=yaml`: unknown; must be one of text, json"),
        ("limits.max_wait_seconds=0", "must be a positive finite number of seconds"),
        ("~default_proxy.train", "`train` is missing"),
        ("key=[hunter2]", "`key`: must be text, not a list"),
    ];
    for (word, expected) in table {
        let error = server(&[word], &here(&[])).unwrap_err();
        assert!(error.message.contains(expected) && error.exit_code == 1, "{word}: {error}");
        assert!(!error.message.contains("hunter2"));
    }
}

#[test]
fn sweeps_make_one_job_each() {
    let line = words(&["-m", "port=range(1,3)", "key=a,b", "host=h"]);
    let Command::Run { jobs, .. } = cli::command::<ServerConfig>(&line, &here(&[])).unwrap() else {
        panic!("it prints")
    };
    let made: Vec<String> = jobs
        .iter()
        .map(|job| format!("{}{}", job.settings.port, job.settings.key.as_ref().unwrap().expose()))
        .collect();
    assert_eq!(made, ["1a", "1b", "2a", "2b"]);
    let error = cli::command::<ServerConfig>(&words(&["-m", "port=range(1,1000000)"]), &here(&[])).unwrap_err();
    assert!(error.message.contains("more than 100000 values"), "{error}");
}

proptest! {
    /// Any text can be given, in either quotes.
    #[test]
    fn quoting_round_trips(text in any::<String>(), double in any::<bool>()) {
        let quote = if double { Quote::Double } else { Quote::Single };
        let change = Override::parse(&format!("k={}", quoted(&text, quote))).unwrap();
        prop_assert_eq!(change.value, Some(OverrideValue::One(Element::Quoted(text, quote))));
    }

    /// Text of the characters that need no quotes can be given with backslashes.
    #[test]
    fn escaping_round_trips(text in "[a-z]{1,3}[a-zA-Z_/.@%?|+:=,(){}\\[\\]\\\\ \t-]{0,20}[a-z]{1,3}") {
        let change = Override::parse(&format!("k={}", escaped(&text))).unwrap();
        prop_assert_eq!(change.value, Some(OverrideValue::One(Element::Text(text))));
    }

    #[test]
    fn any_override_is_parsed_or_refused(text in any::<String>(), more in "[a-z0-9=,:'\"\\\\{}()\\[\\]$ .+~@/-]{0,40}") {
        let _ = Override::parse(&text);
        let _ = Override::parse(&format!("k={text}"));
        if let Ok(Override { value: Some(OverrideValue::One(element)), .. }) = Override::parse(&format!("k={more}")) {
            let again = Override::parse(&format!("k={}", element.to_override_text())).unwrap();
            // An interpolation comes back as its text.
            if !more.contains('$') {
                let json = |element: &Element| element.to_value().map(|value| serde_json::to_string(&value).unwrap());
                let Some(OverrideValue::One(again)) = again.value else { panic!("{more}") };
                prop_assert_eq!(json(&again), json(&element));
            }
        }
    }

    #[test]
    fn any_command_line_is_followed_or_refused(line in prop::collection::vec(
        "--[a-z]{1,6}|-[a-z]{1,3}|[a-z]{1,5}=[a-z0-9,{}\\[\\]:$']{0,8}|~[a-z]{1,4}|port=1|job|--", 0..5)) {
        let _ = cli::compose_command(Program::Controller, &line, &here(&[]));
    }

    #[test]
    fn any_interpolation_resolves_or_is_refused(text in "(\\$\\{|\\}|a|\\.b|:|oc.env|oc.decode|,|'|\\\\|k|\\[|\\]|1| ){0,12}") {
        let _ = resolved(&text);
    }
}

#[test]
fn the_whole_configuration_prints_and_reads_back() {
    let Command::Show(text) = cli::compose_command(Program::Server, &words(&["--cfg", "all"]), &here(&[])).unwrap()
    else {
        panic!("it runs");
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.yaml");
    std::fs::write(&path, &text).unwrap();
    assert_eq!(to_yaml(agl_config::load_file(&path).unwrap().root()), text);
}
