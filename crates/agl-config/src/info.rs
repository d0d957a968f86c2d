//! What `--info` prints: where files were looked for, which were taken in which order, and the result.

use crate::compose::{self, Composed, HYDRA_VERSION, Plan, Request};
use crate::config::ConfigError;
use crate::default_entry::Choice;
use crate::default_entry::What;
use crate::defaults::Tree;
use crate::dump::to_yaml;
use crate::surroundings::Surroundings;

/// The text of one part: `all`, `config`, `defaults`, `defaults-tree`, `plugins` or `searchpath`.
pub(crate) fn text(part: &str, request: &Request<'_>, surroundings: &Surroundings) -> Result<String, ConfigError> {
    let composed = || compose::compose(request, surroundings);
    Ok(match part {
        "plugins" => plugins(),
        "searchpath" => search_path(&composed()?),
        "defaults" => defaults_list(&compose::plan(request)?),
        "defaults-tree" => defaults_tree(&compose::plan(request)?),
        part => {
            let (plan, composed) = (compose::plan(request)?, composed()?);
            let head =
                if part == "all" { header(&format!("Hydra {HYDRA_VERSION}"), '=') + &plugins() } else { String::new() };
            head + &search_path(&composed) + &defaults_tree(&plan) + &defaults_list(&plan) + &config(&composed)
        }
    })
}

fn plugins() -> String {
    header("Installed Hydra Plugins", '*') + "\tnone: this is one program, without plugins\n"
}

fn search_path(composed: &Composed) -> String {
    let rows: Vec<_> = composed.sources.iter().map(|source| vec![source.provider.clone(), source.url()]).collect();
    format!("\n{}{}", header("Config search path", '*'), table(&["Provider", "Search path"], &rows, ""))
}

fn defaults_list(plan: &Plan) -> String {
    let row = |file: &crate::defaults::Placed| {
        let own = if file.is_own { "True" } else { "False" };
        vec![file.path.clone(), file.package.clone(), own.to_owned(), file.parent.clone()]
    };
    let rows: Vec<_> = plan.files.iter().map(row).collect();
    format!("\n{}{}", header("Defaults List", '*'), table(&["Config path", "Package", "_self_", "Parent"], &rows, " "))
}

fn defaults_tree(plan: &Plan) -> String {
    let mut text = format!("\n{}<root>:\n", header("Defaults Tree", '*'));
    for tree in &plan.trees {
        branch(tree, 1, &mut text);
    }
    text
}

fn branch(tree: &Tree, depth: usize, text: &mut String) {
    let entry = &tree.entry;
    let name = match &entry.what {
        What::Own => "_self_".to_owned(),
        What::Config(_) => entry.config_path().unwrap_or_default(),
        What::Group { choice, .. } => {
            let choice = match choice {
                Choice::None => "null".to_owned(),
                Choice::One(name) => name.clone(),
                Choice::Many(names) => names.join(", "),
            };
            format!("{}: {choice}", entry.override_key())
        }
    };
    let colon = if tree.children.is_empty() { "" } else { ":" };
    text.extend(["  ".repeat(depth).as_str(), &name, colon, "\n"]);
    for child in &tree.children {
        branch(child, depth + 1, text);
    }
}

fn config(composed: &Composed) -> String {
    header("Config", '*') + &to_yaml(&composed.job()) + "\n"
}

fn header(title: &str, line: char) -> String {
    format!("{title}\n{}\n", line.to_string().repeat(title.chars().count()))
}

/// A table with as much room as the longest cell of each column needs.
fn table(titles: &[&str], rows: &[Vec<String>], after: &str) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([titles[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("| {} |", padded.collect::<Vec<_>>().join(" | "))
    };
    let title = line(titles.to_vec());
    let rule = "-".repeat(title.chars().count() + after.len());
    let body: String = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()) + "\n").collect();
    format!("{title}{after}\n{rule}\n{body}{rule}\n")
}
