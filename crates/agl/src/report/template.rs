//! The templates, built into the program.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde::Serialize;

/// Fills one of the templates. Everything is escaped, in the SVG too, and a name that is not there is an error.
pub(super) fn render(name: &str, data: &impl Serialize) -> Result<String, minijinja::Error> {
    let mut templates = Environment::new();
    templates.set_auto_escape_callback(|_| AutoEscape::Html);
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    templates.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    templates.add_template("curve.svg", include_str!("curve.svg.jinja"))?;
    templates.add_template("report.html", include_str!("report.html.jinja"))?;
    templates.add_template("report.css", include_str!("report.css"))?;
    templates.get_template(name)?.render(Serde(data))
}
