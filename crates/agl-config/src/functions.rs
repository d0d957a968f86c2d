//! The functions of the override grammar: casts (`int(3.7)`), sweeps (`range(1,5)`) and `sort`, `shuffle`, `tag`.
//!
//! Behaviour: <https://hydra.cc/docs/1.3/advanced/override_grammar/extended/>. `shuffle` keeps the order that was given:
//! it is one of those it could give, and the same each time.

use crate::element::Element;
use crate::override_grammar::OverrideValue;
use crate::sweep::{Number, Range, Sweep};
use crate::value::Value;

const NAMES: &str = "bool,choice,float,glob,int,interval,range,shuffle,sort,str,tag";

/// A call whose arguments are evaluated.
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) positional: Vec<OverrideValue>,
    pub(crate) named: Vec<(String, OverrideValue)>,
}

type Outcome = Result<OverrideValue, String>;

/// What the call stands for.
pub(crate) fn evaluate(mut call: Call) -> Outcome {
    let result = match call.name.as_str() {
        "int" => cast(only_value(&mut call)?, Cast::Int),
        "float" => cast(only_value(&mut call)?, Cast::Float),
        "str" => cast(only_value(&mut call)?, Cast::Str),
        "bool" => cast(only_value(&mut call)?, Cast::Bool),
        "choice" => choice(&mut call),
        "range" => range(&mut call),
        "interval" => interval(&mut call),
        "glob" => glob(&mut call),
        "sort" => sort(&mut call),
        "shuffle" => shuffle(&mut call),
        "tag" => call
            .positional
            .pop()
            .filter(is_sweep)
            .ok_or_else(|| "the last argument of tag() must be a sweep".to_owned()),
        name => return Err(format!("Unknown function '{name}'\nAvailable: {NAMES}")),
    }?;
    match call.named.first() {
        Some((name, _)) => Err(format!("{}() has no argument named '{name}'", call.name)),
        None => Ok(result),
    }
}

impl Call {
    /// Takes the argument that is at `index` or is called `name`.
    fn take(&mut self, index: usize, name: &str) -> Option<OverrideValue> {
        if let Some(at) = self.named.iter().position(|(given, _)| given == name) {
            return Some(self.named.remove(at).1);
        }
        self.positional.get(index).cloned()
    }

    fn number(&mut self, index: usize, name: &str) -> Result<Option<Number>, String> {
        match self.take(index, name) {
            None => Ok(None),
            Some(OverrideValue::One(Element::Scalar(Value::Int(number)))) => Ok(Some(Number::Int(number))),
            Some(OverrideValue::One(Element::Scalar(Value::Float(number)))) => Ok(Some(Number::Float(number))),
            Some(_) => Err(format!("mismatch type argument {name}: must be a number")),
        }
    }

    fn at_most(&self, count: usize) -> Result<(), String> {
        if self.positional.len() > count { Err(format!("too many arguments for {}()", self.name)) } else { Ok(()) }
    }
}

/// The one argument of a cast; several are a choice.
fn only_value(call: &mut Call) -> Outcome {
    if let Some(at) = call.named.iter().position(|(name, _)| name == "value") {
        if !call.positional.is_empty() {
            return Err("cannot use both position and named arguments".to_owned());
        }
        return Ok(call.named.remove(at).1);
    }
    match call.positional.len() {
        0 => Err("No positional args or value specified".to_owned()),
        1 => Ok(call.positional.remove(0)),
        _ => Ok(OverrideValue::Sweep(Sweep::SimpleChoice(elements(&call.positional)?))),
    }
}

fn elements(values: &[OverrideValue]) -> Result<Vec<Element>, String> {
    let element = |value: &OverrideValue| match value {
        OverrideValue::One(element) => Ok(element.clone()),
        OverrideValue::Sweep(_) => Err("a sweep can't be inside another one".to_owned()),
    };
    values.iter().map(element).collect()
}

fn is_sweep(value: &OverrideValue) -> bool {
    matches!(value, OverrideValue::Sweep(_))
}

#[derive(Clone, Copy, PartialEq)]
enum Cast {
    Int,
    Float,
    Str,
    Bool,
}

fn cast(value: OverrideValue, to: Cast) -> Outcome {
    let items =
        |items: Vec<Element>| items.into_iter().map(|item| cast_element(item, to)).collect::<Result<Vec<_>, _>>();
    Ok(match value {
        OverrideValue::One(element) => OverrideValue::One(cast_element(element, to)?),
        OverrideValue::Sweep(Sweep::SimpleChoice(list)) => OverrideValue::Sweep(Sweep::SimpleChoice(items(list)?)),
        OverrideValue::Sweep(Sweep::Choice(list)) => OverrideValue::Sweep(Sweep::Choice(items(list)?)),
        OverrideValue::Sweep(Sweep::Range(range)) => {
            let number = |number: Number| match to {
                Cast::Int => Ok(Number::Int(number.as_f64() as i128)),
                Cast::Float => Ok(Number::Float(number.as_f64())),
                Cast::Str | Cast::Bool => Err("Range can only be cast to int or float".to_owned()),
            };
            let range = Range { start: number(range.start)?, stop: number(range.stop)?, step: number(range.step)? };
            OverrideValue::Sweep(Sweep::Range(range))
        }
        OverrideValue::Sweep(sweep @ Sweep::Interval { .. }) if matches!(to, Cast::Int | Cast::Float) => {
            OverrideValue::Sweep(sweep)
        }
        OverrideValue::Sweep(_) => return Err("this kind of sweep can't be cast".to_owned()),
    })
}

fn cast_element(element: Element, to: Cast) -> Result<Element, String> {
    let value = match element {
        Element::List(items) => {
            let items = items.into_iter().map(|item| cast_element(item, to));
            return Ok(Element::List(items.collect::<Result<_, _>>()?));
        }
        Element::Map(entries) => {
            let entries = entries.into_iter().map(|(key, value)| Ok((key, cast_element(value, to)?)));
            return Ok(Element::Map(entries.collect::<Result<_, String>>()?));
        }
        Element::Scalar(Value::Null) => return Err("null can't be cast".to_owned()),
        Element::Scalar(value) => value,
        Element::Text(text) | Element::Quoted(text, _) => Value::Text(text),
    };
    let cast = match to {
        Cast::Int => to_int(&value),
        Cast::Float => to_float(&value).map(Value::Float),
        Cast::Str => {
            return Ok(Element::Text(match value {
                Value::Bool(flag) => flag.to_string(),
                other => other.to_string(),
            }));
        }
        Cast::Bool => to_bool(&value),
    };
    let name = ["int", "float", "str", "bool"][to as usize];
    cast.map(Element::Scalar).ok_or_else(|| format!("Cannot cast '{value}' to {name}"))
}

fn to_int(value: &Value) -> Option<Value> {
    match value {
        Value::Bool(flag) => Some(Value::Int(i128::from(*flag))),
        Value::Int(_) | Value::BigInt(_) => Some(value.clone()),
        Value::Float(number) if number.is_finite() => Some(Value::Int(number.trunc() as i128)),
        Value::Text(text) => Value::from_decimal(&without_underscores(text.trim())?),
        _ => None,
    }
}

fn to_float(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        Value::Int(number) => Some(*number as f64),
        Value::BigInt(digits) => digits.parse().ok(),
        Value::Float(number) => Some(*number),
        Value::Text(text) => without_underscores(text.trim())?.parse().ok(),
        _ => None,
    }
}

fn to_bool(value: &Value) -> Option<Value> {
    let flag = match value {
        Value::Bool(flag) => *flag,
        Value::Int(number) => *number != 0,
        Value::BigInt(_) => true,
        Value::Float(number) => *number != 0.0,
        Value::Text(text) => text.to_lowercase().parse().ok()?,
        _ => return None,
    };
    Some(Value::Bool(flag))
}

/// Python allows single underscores between digits.
pub(crate) fn without_underscores(text: &str) -> Option<String> {
    let misplaced = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    (!misplaced).then(|| text.replace('_', ""))
}

fn choice(call: &mut Call) -> Outcome {
    let items = match call.positional.as_slice() {
        [] => return Err("empty choice is not legal".to_owned()),
        [OverrideValue::Sweep(Sweep::SimpleChoice(items))] => items.clone(),
        values => elements(values)?,
    };
    Ok(OverrideValue::Sweep(Sweep::Choice(items)))
}

fn range(call: &mut Call) -> Outcome {
    call.at_most(3)?;
    let start = call.number(0, "start")?.ok_or("range() needs a stop")?;
    let step = call.number(2, "step")?.unwrap_or(Number::Int(1));
    let range = match call.number(1, "stop")? {
        Some(stop) => Range { start, stop, step },
        None => Range { start: Number::Int(0), stop: start, step },
    };
    Ok(OverrideValue::Sweep(Sweep::Range(range)))
}

fn interval(call: &mut Call) -> Outcome {
    call.at_most(2)?;
    let (Some(start), Some(end)) = (call.number(0, "start")?, call.number(1, "end")?) else {
        return Err("interval() needs a start and an end".to_owned());
    };
    Ok(OverrideValue::Sweep(Sweep::Interval { start: start.as_f64(), end: end.as_f64() }))
}

fn glob(call: &mut Call) -> Outcome {
    call.at_most(2)?;
    let include = call.take(0, "include").ok_or("glob() needs a pattern")?;
    let exclude = call.take(1, "exclude").map_or(Ok(Vec::new()), patterns)?;
    Ok(OverrideValue::Sweep(Sweep::Glob { include: patterns(include)?, exclude }))
}

fn patterns(value: OverrideValue) -> Result<Vec<String>, String> {
    let pattern = |element: Element| match element {
        Element::Text(text) | Element::Quoted(text, _) => Ok(text),
        _ => Err("a pattern of glob() must be text".to_owned()),
    };
    match value {
        OverrideValue::One(Element::List(items)) => items.into_iter().map(pattern).collect(),
        OverrideValue::One(element) => Ok(vec![pattern(element)?]),
        OverrideValue::Sweep(_) => Err("a pattern of glob() must be text".to_owned()),
    }
}

fn sort(call: &mut Call) -> Outcome {
    let descending = match call.named.iter().position(|(name, _)| name == "reverse") {
        None => false,
        Some(at) => match call.named.remove(at).1 {
            OverrideValue::One(Element::Scalar(Value::Bool(flag))) => flag,
            _ => return Err("mismatch type argument reverse: must be true or false".to_owned()),
        },
    };
    for name in ["list", "sweep"] {
        if let Some(at) = call.named.iter().position(|(given, _)| given == name) {
            call.positional = vec![call.named.remove(at).1];
        }
    }
    match call.positional.as_slice() {
        [] => Err("empty sort input".to_owned()),
        [OverrideValue::One(Element::List(items))] => {
            Ok(OverrideValue::One(Element::List(sorted(items.clone(), descending)?)))
        }
        [OverrideValue::One(element)] => Ok(OverrideValue::One(element.clone())),
        [OverrideValue::Sweep(sweep)] => Ok(OverrideValue::Sweep(match sweep.clone() {
            Sweep::SimpleChoice(items) => Sweep::SimpleChoice(sorted(items, descending)?),
            Sweep::Choice(items) => Sweep::Choice(sorted(items, descending)?),
            Sweep::Range(range) => Sweep::Range(range.sorted(descending).ok_or("the range is too long")?),
            other => other,
        })),
        values => Ok(OverrideValue::Sweep(Sweep::SimpleChoice(sorted(elements(values)?, descending)?))),
    }
}

/// Numbers among numbers and texts among texts can be sorted; a mix can't, as in Python.
fn sorted(mut items: Vec<Element>, descending: bool) -> Result<Vec<Element>, String> {
    let number = |element: &Element| match element {
        Element::Scalar(value) => to_float(value),
        _ => None,
    };
    let text = |element: &Element| match element {
        Element::Text(text) | Element::Quoted(text, _) => Some(text.clone()),
        _ => None,
    };
    if items.iter().all(|item| number(item).is_some()) {
        items.sort_by(|a, b| number(a).partial_cmp(&number(b)).unwrap_or(std::cmp::Ordering::Equal));
    } else if items.iter().all(|item| text(item).is_some()) {
        items.sort_by_key(text);
    } else {
        return Err("only numbers, or only texts, can be sorted".to_owned());
    }
    if descending {
        items.reverse();
    }
    Ok(items)
}

fn shuffle(call: &mut Call) -> Outcome {
    for name in ["list", "sweep"] {
        if let Some(at) = call.named.iter().position(|(given, _)| given == name) {
            return Ok(call.named.remove(at).1);
        }
    }
    match call.positional.as_slice() {
        [OverrideValue::One(element @ Element::List(_))] => Ok(OverrideValue::One(element.clone())),
        [OverrideValue::One(element)] => Ok(OverrideValue::One(Element::List(vec![element.clone()]))),
        [sweep @ OverrideValue::Sweep(_)] => Ok(sweep.clone()),
        values => Ok(OverrideValue::Sweep(Sweep::SimpleChoice(elements(values)?))),
    }
}
