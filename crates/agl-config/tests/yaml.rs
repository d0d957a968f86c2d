//! What YAML means here: PyYAML's scalars with OmegaConf's changes, and what is refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use agl_config::{Config, Value, load_file, to_yaml};
use proptest::prelude::*;

fn load(text: &str) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    std::fs::write(&path, text).unwrap();
    load_file(&path).map_err(|error| error.to_string().replace(&path.display().to_string(), "a.yaml"))
}

fn scalar(text: &str) -> Value {
    load(&format!("k: {text}\n")).unwrap().select("k").unwrap().value.clone()
}

#[test]
fn plain_scalars() {
    let int = Value::Int;
    let float = Value::Float;
    let text = |text: &str| Value::Text(text.to_owned());
    let table = [
        // null and true/false
        ("", Value::Null),
        ("~", Value::Null),
        ("null", Value::Null),
        ("Null", Value::Null),
        ("nuLL", text("nuLL")),
        ("yes", Value::Bool(true)),
        ("On", Value::Bool(true)),
        ("TRUE", Value::Bool(true)),
        ("no", Value::Bool(false)),
        ("OFF", Value::Bool(false)),
        ("oFF", text("oFF")),
        ("y", text("y")),
        ("n", text("n")),
        // whole numbers
        ("0", int(0)),
        ("-5", int(-5)),
        ("+5", int(5)),
        ("1_000", int(1000)),
        ("012", int(10)),
        ("08", text("08")),
        ("0o14", text("0o14")),
        ("0x1F", int(31)),
        ("0b101", int(5)),
        ("1:30", int(90)),
        ("12:30:45", int(45045)),
        ("1:60", text("1:60")),
        ("1.2.3", text("1.2.3")),
        // numbers with a fraction or an exponent
        ("1.", float(1.0)),
        (".5", float(0.5)),
        ("-.5", text("-.5")),
        ("1e3", float(1000.0)),
        ("1.5e3", float(1500.0)),
        ("1e-3", float(0.001)),
        ("1_0.5", float(10.5)),
        ("1e", text("1e")),
        ("1e400", float(f64::INFINITY)),
        ("-.inf", float(f64::NEG_INFINITY)),
        ("1:30.5", float(90.5)),
        // dates stay text; quotes make text
        ("2020-01-01", text("2020-01-01")),
        ("'1'", text("1")),
        ("\"yes\"", text("yes")),
        ("!!str 1", text("1")),
        ("!!int '5'", int(5)),
        ("!!float 1", float(1.0)),
        // what has a meaning of its own
        ("???", Value::Missing),
        ("${a.b}", Value::Interpolation("${a.b}".to_owned())),
    ];
    for (yaml, expected) in table {
        assert_eq!(scalar(yaml), expected, "{yaml}");
    }
    assert!(matches!(scalar(".nan"), Value::Float(number) if number.is_nan()));
    let digits = "1".repeat(60);
    assert_eq!(scalar(&digits), Value::BigInt(digits));
}

#[test]
fn merges_keep_the_own_value() {
    let config = load("a: &a {x: 1, w: 2}\nb: &b {x: 3, z: 4}\nc: {x: 0, <<: [*a, *b]}\n").unwrap();
    assert_eq!(to_yaml(config.select("c").unwrap()), "x: 0\nz: 4\nw: 2\n");
}

#[test]
fn refusals_name_the_place() {
    let table = [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "a.yaml:4:3: found duplicate key `c`; its first value is at a.yaml:3:3"),
        ("a: [1\n", "a.yaml:2:1: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1: a second document begins"),
        ("a: !thing 1\n", "a.yaml:1:4: could not determine a constructor for the tag `!thing`"),
        ("a: !!int x\n", "a.yaml:1:4: `x` is not a whole number"),
        ("a: {<<: 5}\n", "`<<` merges maps, but this is whole number"),
        ("a: ${b\n", "a.yaml:1:4: not valid YAML: `${b` ends too early, expected `}` or `:`"),
        ("5\n", "a.yaml:1:1: a configuration is a map of keys and values, but this is whole number"),
        ("- a\n", "a configuration is a map of keys and values, but this is a list"),
        ("a: &a [*a]\n", "a value can't contain itself"),
    ];
    for (yaml, expected) in table {
        let error = load(yaml).map(|config| to_yaml(config.root())).unwrap_err();
        assert!(error.contains(expected), "{yaml}\nwant {expected}\ngot  {error}");
    }
}

#[test]
fn aliases_cannot_stand_for_a_billion_values() {
    let mut text = "a0: &a0 [1]\n".to_owned();
    for level in 1..40 {
        let below = format!("*a{}", level - 1);
        let line = format!("a{level}: &a{level} [{below}, {below}, {below}, {below}]\n");
        text.push_str(&line);
    }
    assert!(load(&text).unwrap_err().contains("more than 1000000 values"));
    let deep = format!("a: {}{}\n", "[".repeat(200), "]".repeat(200));
    assert!(load(&deep).is_err());
}

#[test]
fn printed_as_pyyaml_does() {
    let check = |yaml: &str, expected: &str| assert_eq!(to_yaml(load(yaml).unwrap().root()), expected, "{yaml}");
    check("", "{}\n");
    check("a: 1e20\nb: 1e-7\nc: 1.0\nd: .inf\ne: .nan\n", "a: 1.0e+20\nb: 1.0e-07\nc: 1.0\nd: .inf\ne: .nan\n");
    check(
        "a: ''\nb: 'yes'\nc: '1'\nd: '1_0'\ne: '2020-01-01'\n",
        "a: ''\nb: 'yes'\nc: '1'\nd: '1_0'\ne: '2020-01-01'\n",
    );
    check("a: [1, [2, {b: 3}], {}, []]\n", "a:\n- 1\n- - 2\n  - b: 3\n- {}\n- []\n");
    check("a: 'x: y'\nb: 'it''s'\nc: ' x'\nd: '# x'\n", "a: 'x: y'\nb: it's\nc: ' x'\nd: '# x'\n");
    check("a: \"x\\ty\"\nb: \"x\\ny\"\nc: é\n", "a: \"x\\ty\"\nb: 'x\n\n  y'\nc: é\n");
    let words = "word ".repeat(20);
    let line = "word ".repeat(16);
    check(&format!("a: {words}\n"), &format!("a: {}\n  word word word word\n", line.trim_end()));
}

/// A value of any kind, not too deep.
fn value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        (-1e9_f64..1e9).prop_map(serde_json::Value::from),
        "[ -~é\n\t]{0,100}".prop_map(serde_json::Value::from),
        "(yes|1e3|0x1f|1:30|2020-01-01|null|~|-|\\?|: |#|')[a-z0-9 ]{0,4}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            prop::collection::btree_map("[a-z]{1,6}", inner, 0..4).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

proptest! {
    /// What is printed reads back as the same tree.
    #[test]
    fn printing_round_trips(value in value()) {
        let config = Config::from_defaults(&serde_json::json!({ "k": value })).unwrap();
        let text = to_yaml(config.root());
        let json = |config: &Config| serde_json::to_string(&config.root().value).unwrap();
        match load(&text) {
            Ok(read) => prop_assert_eq!(json(&read), json(&config), "{}", text),
            // Text with a broken `${` can be printed, but not be read.
            Err(error) => prop_assert!(text.contains("${"), "{error}\n{text}"),
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[ -~\n\t]{0,60}|(k: |- |\\{|\\[|&a |\\*a|<<: |\\$\\{|!!int |\n){0,20}") {
        if let Ok(config) = load(&text) {
            let _ = config.resolve();
        }
    }
}
