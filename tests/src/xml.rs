//! Whether a text is well-formed XML, as far as generated pictures use it.
//!
//! Checked: one root element, tags that nest, quoted attributes without `<` and each once, known
//! entities, closed comments and CDATA sections. Not checked: DTDs and name spaces.

/// Number of elements, or where the text is not well-formed.
pub fn elements(text: &str) -> Result<usize, String> {
    let mut open: Vec<&str> = Vec::new();
    let (mut count, mut roots) = (0, 0);
    let mut rest = text;
    let fail = |rest: &str, what: &str| Err(format!("{what} at byte {}", text.len() - rest.len()));
    loop {
        let Some(at) = rest.find('<') else {
            return match () {
                () if !open.is_empty() => {
                    fail(rest, &format!("<{}> is never closed", open[open.len() - 1]))
                }
                () if !rest.trim().is_empty() => fail(rest, "text behind the root"),
                () if roots != 1 => fail(rest, &format!("{roots} roots")),
                () => Ok(count),
            };
        };
        let between = &rest[..at];
        if open.is_empty() && !between.trim().is_empty() {
            return fail(rest, "text outside the root");
        }
        if let Err(what) = entities(between) {
            return fail(rest, &what);
        }
        rest = &rest[at..];
        let skipped = [
            ("<?", "?>"),
            ("<!--", "-->"),
            ("<![CDATA[", "]]>"),
            ("<!", ">"),
        ]
        .into_iter()
        .find(|(begin, _)| rest.starts_with(begin));
        if let Some((_, end)) = skipped {
            match rest.find(end) {
                Some(at) => rest = &rest[at + end.len()..],
                None => return fail(rest, &format!("no {end}")),
            }
            continue;
        }
        let Some(end) = tag_end(rest) else {
            return fail(rest, "a tag without end");
        };
        let tag = &rest[1..end];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name.trim_end()) {
                return fail(rest, &format!("</{name}> closes nothing"));
            }
        } else {
            let (body, empty) = match tag.strip_suffix('/') {
                Some(body) => (body, true),
                None => (tag, false),
            };
            let name = body.split_whitespace().next().unwrap_or_default();
            if name.is_empty() {
                return fail(rest, "a tag without name");
            }
            if let Err(what) = attributes(&body[name.len()..]) {
                return fail(rest, &what);
            }
            roots += usize::from(open.is_empty());
            count += 1;
            if !empty {
                open.push(name);
            }
        }
        rest = &rest[end + 1..];
    }
}

/// Where the tag at the start of `text` has its `>`, quotes respected.
fn tag_end(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(at),
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), byte) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

fn attributes(text: &str) -> Result<(), String> {
    let mut rest = text.trim();
    let mut seen = Vec::new();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=').ok_or("an attribute without value")?;
        let name = name.trim();
        if seen.contains(&name) {
            return Err(format!("attribute {name} twice"));
        }
        seen.push(name);
        let after = after.trim_start();
        let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''));
        let quote = quote.ok_or_else(|| format!("attribute {name} is not quoted"))?;
        let (value, behind) = after[1..]
            .split_once(quote)
            .ok_or_else(|| format!("attribute {name} does not end"))?;
        if value.contains('<') {
            return Err(format!("attribute {name} holds a <"));
        }
        entities(value)?;
        rest = behind.trim_start();
    }
    Ok(())
}

fn entities(text: &str) -> Result<(), String> {
    for part in text.split('&').skip(1) {
        let name = part
            .split_once(';')
            .map(|(name, _)| name)
            .unwrap_or_default();
        let known = matches!(name, "amp" | "lt" | "gt" | "quot" | "apos")
            || name
                .strip_prefix('#')
                .is_some_and(|number| !number.is_empty());
        if !known {
            return Err(format!("unknown entity &{name}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::elements;

    #[test]
    fn accepts_what_is_well_formed() {
        let text = "<?xml version=\"1.0\"?><!DOCTYPE svg><svg a='1'><!-- <x> --><g b=\"a&gt;b>\"/>\
                    <t>x &amp; y</t><script><![CDATA[ a < b ]]></script></svg>\n";
        assert_eq!(elements(text), Ok(4));
    }

    #[test]
    fn names_what_is_not() {
        for bad in [
            "",
            "text",
            "<a>",
            "<a></b>",
            "<a/><b/>",
            "<a b=c/>",
            "<a b='1' b='2'/>",
            "<a>&nope;</a>",
            "<a>& </a>",
            "<a b='<'/>",
            "<a",
            "<a><![CDATA[</a>",
            "<a/>text",
        ] {
            assert!(elements(bad).is_err(), "{bad}");
        }
    }
}
