//! What `--help`, `--hydra-help` and `--shell-completion` print.

use crate::compose::{Composed, HYDRA_VERSION};
use crate::config::ConfigError;
use crate::defaults::ComposeError;
use crate::interpolation::OnMissing;
use crate::program::{HYDRA_FILES, Program};
use crate::sources::{Listed, Sources};
use crate::surroundings::Surroundings;
use crate::value::{Key, Node, Value};
use crate::yaml;

/// The text of `--help`: the template in Hydra's settings, which a configuration may change.
pub(crate) fn help(
    composed: &Composed,
    config: &str,
    sources: &Sources,
    surroundings: &Surroundings,
) -> Result<String, ConfigError> {
    const TEMPLATE: &str = "hydra.help.template";
    let Some(node) = composed.config.select(TEMPLATE) else {
        return Err(ComposeError(format!("'{TEMPLATE}' is missing")).into());
    };
    let template =
        composed.resolved_in(composed.config.root(), node, TEMPLATE, OnMissing::Keep, surroundings)?.value.to_string();
    let groups = groups(sources, |group| group != "hydra" && !group.starts_with("hydra/"));
    Ok(template.replace("$APP_CONFIG_GROUPS", &groups).replace("$CONFIG", config) + "\n")
}

/// The text of `--hydra-help`.
pub(crate) fn hydra_help(program: Program, sources: &Sources) -> String {
    let text = HYDRA_FILES.iter().find(|(file, _)| *file == "hydra/hydra_help/default").map_or("", |(_, text)| text);
    let template = yaml::parse(text, &yaml::Source::BuiltIn).ok().and_then(|root| root.get("template").cloned());
    let template = template.map(|node| node.value.to_string()).unwrap_or_default();
    let groups = groups(sources, |group| group == "hydra" || group.starts_with("hydra/"));
    template
        .replace("${hydra.runtime.version}", HYDRA_VERSION)
        .replace("$FLAGS_HELP", &flags(program.name()))
        .replace("$HYDRA_CONFIG_GROUPS", &groups)
        + "\n"
}

/// `group: option, option`, one a line.
fn groups(sources: &Sources, wanted: fn(&str) -> bool) -> String {
    let mut found = Vec::new();
    let mut pending = sources.list("", Listed::Groups);
    while let Some(group) = pending.pop() {
        pending.extend(sources.list(&group, Listed::Groups).iter().map(|name| format!("{group}/{name}")));
        let options = sources.list(&group, Listed::Files);
        if wanted(&group) && !options.is_empty() {
            found.push((group, options.join(", ")));
        }
    }
    found.sort();
    let lines: Vec<String> = found.iter().map(|(group, options)| format!("{group}: {options}\n")).collect();
    lines.concat()
}

fn flags(program: &str) -> String {
    format!(
        "\
--help,-h : Application's help
--hydra-help : Hydra's help
--version : Show Hydra's version and exit
--cfg,-c : Show config instead of running [job|hydra|all]
--resolve : Used in conjunction with --cfg, resolve config interpolations before printing.
--package,-p : Config package to show
--run,-r : Run a job
--multirun,-m : Run multiple jobs, one after the other
--shell-completion,-sc : Completion of settings in bash:
    eval \"$({program} -sc install=bash)\"
    eval \"$({program} -sc uninstall=bash)\"
--config-path,-cp : Folder (an absolute path) to take the place of the built-in configuration
--config-name,-cn : Name of the configuration file to start from, without .yaml
--config-dir,-cd : Adds an additional config dir to the config search path
--experimental-rerun : Not supported: it reads Python objects
--info,-i : Print Hydra information [all|config|defaults|defaults-tree|plugins|searchpath]
Overrides : Any key=value arguments to override config values (use dots for.nested=overrides)"
    )
}

/// `install=bash`, `uninstall=bash` or `query=bash`.
pub(crate) fn completion(
    program: Program,
    words: &[String],
    composed: &Composed,
    surroundings: &Surroundings,
) -> Result<String, ConfigError> {
    let program = program.name();
    let function = format!("_{}_complete", program.replace('-', "_"));
    match words {
        [word] if word == "install=bash" => Ok(format!(
            "{function}() {{ COMPREPLY=($(COMP_LINE=\"$COMP_LINE\" {program} -sc query=bash)); }}\n\
             COMP_WORDBREAKS=${{COMP_WORDBREAKS//=}}\n\
             complete -o nospace -F {function} {program}\n"
        )),
        [word] if word == "uninstall=bash" => Ok(format!("complete -r {program}\nunset -f {function}\n")),
        [word] if word == "query=bash" => {
            let line = surroundings.variable("COMP_LINE").unwrap_or_default();
            let begun = line.rsplit(' ').next().unwrap_or_default();
            let known = settings(&composed.job());
            let offered: Vec<String> = known.into_iter().filter(|name| name.starts_with(begun)).collect();
            Ok(offered.join("\n") + "\n")
        }
        [word] if ["install=", "uninstall=", "query="].iter().any(|prefix| word.starts_with(prefix)) => {
            let shell = word.split('=').nth(1).unwrap_or_default();
            Err(ComposeError(format!("No completion plugin for '{shell}' found, available : \n\tbash")).into())
        }
        _ => Err(ComposeError(
            "Expecting one subcommand from ['install', 'uninstall', 'query'] to be set, such as -sc install=bash"
                .to_owned(),
        )
        .into()),
    }
}

/// `default_proxy.train.temperature=` for every setting.
fn settings(job: &Node) -> Vec<String> {
    let mut names = Vec::new();
    let mut pending = vec![(String::new(), job)];
    while let Some((path, node)) = pending.pop() {
        match &node.value {
            Value::Map(map) if !map.is_empty() => {
                let below = |key: &Key| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
                pending.extend(map.iter().map(|(key, child)| (below(key), child)));
            }
            _ => names.push(format!("{path}=")),
        }
    }
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_offers_every_setting() {
        let yaml = yaml::parse("a: 1\nb: {c: {d: 2}, e: []}\n", &yaml::Source::BuiltIn).unwrap();
        assert_eq!(settings(&yaml), ["a=", "b.c.d=", "b.e="]);
    }
}
