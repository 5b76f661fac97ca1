//! What addresses mean.

use serde_json::json;

use super::*;

/// [`SAMPLED`] in JSON.
const SAMPLED_TEXT: &str = "4194614";

#[test]
fn functions_and_lines() {
    for replay in [None, Some(Replay::AtOnce)] {
        let mut bench = Bench::new(replay);
        for id in [r#""P100""#, r#""P100.101""#] {
            let symbol = bench.one("Symbols", "findByAddr", &[id, SAMPLED_TEXT]);
            let symbol = symbol.as_str().unwrap();
            assert_eq!(symbol, "@SP100.400100");
            let quoted = format!("\"{symbol}\"");
            let context = format!(
                concat!(
                    r#"{{"ID":{},"OwnerID":"P100","UpdatePolicy":0,"Name":"compute","#,
                    r#""Class":3,"Address":4194560,"Size":128}}"#
                ),
                quoted
            );
            assert_eq!(bench.result("Symbols", "getContext", &[&quoted]), [context]);
            assert_eq!(bench.result("Symbols", "getChildren", &[&quoted]), ["[]"]);
            assert_eq!(
                bench.result("LineNumbers", "mapToSource", &[id, SAMPLED_TEXT, "4194615"]),
                [concat!(
                    r#"[{"SAddr":4194614,"EAddr":4194615,"SLine":7,"ELine":7,"#,
                    r#""File":"inner.h","Dir":"/src/app"}]"#
                )]
            );
            // Where it begins nobody was; it has the same name, and a line of its own there.
            let start = bench.one("Symbols", "findByAddr", &[id, "4194560"]);
            assert_eq!(start, symbol);
            // JSON has one kind of numbers, in whatever way they are written.
            for whole in ["4194560.0", "4.19456e6", "419456E1"] {
                assert_eq!(
                    bench.one("Symbols", "findByAddr", &[id, whole]),
                    start,
                    "{whole}"
                );
            }
            let lines = [id, "4194560", "4194561"];
            if replay.is_none() && id.len() == 6 {
                let line = bench.call("LineNumbers", "mapToSource", &lines);
                assert_eq!(line, Ok(Outcome::Later));
                for question in bench.state.world.questions() {
                    bench.state.world.acknowledged(question.id);
                }
            }
            assert_eq!(
                bench.result("LineNumbers", "mapToSource", &lines),
                [concat!(
                    r#"[{"SAddr":4194560,"EAddr":4194561,"SLine":12,"ELine":12,"#,
                    r#""File":"main.c","Dir":"/src/app"}]"#
                )]
            );
            let empty = bench.result("LineNumbers", "mapToSource", &[id, SAMPLED_TEXT, "0"]);
            assert_eq!(empty, ["null"]);
        }
        assert_eq!(bench.state.world.questions(), []);
        assert_eq!(bench.result("Symbols", "list", &[r#""P100""#]), ["[]"]);
        assert_eq!(
            bench
                .error(
                    "LineNumbers",
                    "mapToMemory",
                    &[r#""P100""#, "\"a.c\"", "7", "0"]
                )
                .0,
            23
        );
    }
}

#[test]
fn what_is_not_known_yet_is_answered_later_and_not_for_ever() {
    let mut bench = Bench::live();
    let arguments = [r#""P100""#, "4195000", "4195001"];
    assert_eq!(
        bench.call("Symbols", "findByAddr", &arguments[..2]),
        Ok(Outcome::Later)
    );
    assert_eq!(
        bench.call("LineNumbers", "mapToSource", &arguments),
        Ok(Outcome::Later)
    );
    let id = ["\"@SP100.4002d8\""];
    assert_eq!(bench.call("Symbols", "getContext", &id), Ok(Outcome::Later));
    bench.last_try = true;
    let missing = (22, "null".to_owned());
    assert_eq!(
        bench.error("Symbols", "findByAddr", &arguments[..2]),
        missing
    );
    assert_eq!(bench.error("Symbols", "getContext", &id), missing);
    assert_eq!(
        bench.result("LineNumbers", "mapToSource", &arguments),
        ["null"]
    );

    let mut recorded = Bench::new(Some(Replay::AtOnce));
    for (address, end) in [
        ("4195000", "4195001"),
        ("0", "4096"),
        ("18446744073709551615", "18446744073709551616"),
        // As a signed number has it, and no addresses at all.
        ("-1", "0"),
        ("-2", "-1"),
        ("18446744073709551616", "18446744073709551617"),
        ("1e30", "1e31"),
    ] {
        let found = recorded.error("Symbols", "findByAddr", &[r#""P100""#, address]);
        assert_eq!(found, missing, "{address}");
        let lines = [r#""P100""#, address, end];
        assert_eq!(
            recorded.result("LineNumbers", "mapToSource", &lines),
            ["null"],
            "{address}"
        );
    }
}

#[test]
fn a_range_has_all_its_areas() {
    let mut bench = Bench::new(Some(Replay::AtOnce));
    let (frame, line) = (FrameId::from_index(1), |line| Line {
        function: FunctionId::from_index(1),
        line,
    });
    let next = Frame {
        kind: FrameKind::Native,
        module: Some(ModuleId::from_index(0)),
        address: SAMPLED + 1 - MAPPED + OFFSET,
    };
    let lines = Symbol::Lines([line(7)].into());
    bench.state.world.define(
        0,
        vec![
            Definition::Frame(frame, next),
            Definition::Symbol(frame, lines),
        ],
    );
    assert_eq!(
        bench.one("Symbols", "findByAddr", &[r#""P100""#, SAMPLED_TEXT]),
        "@SP100.400100"
    );
    let area = |start: u64, end: u64, line: u32, file: &str| {
        json!({
            "SAddr": start, "EAddr": end, "SLine": line, "ELine": line,
            "File": file, "Dir": "/src/app",
        })
    };
    let begin = area(0x40_0100, 0x40_0101, 12, "main.c");
    for (start, end, expected) in [
        (0x40_0100, 0x40_0101, vec![begin.clone()]),
        (
            SAMPLED,
            SAMPLED + 1,
            vec![area(SAMPLED, SAMPLED + 1, 7, "inner.h")],
        ),
        (
            0x40_0000,
            0x40_1000,
            vec![begin, area(SAMPLED, SAMPLED + 2, 7, "inner.h")],
        ),
        (
            SAMPLED + 1,
            SAMPLED + 0x800,
            vec![area(SAMPLED + 1, SAMPLED + 2, 7, "inner.h")],
        ),
    ] {
        let (start, end) = (start.to_string(), end.to_string());
        let areas = bench.one("LineNumbers", "mapToSource", &[r#""P100""#, &start, &end]);
        assert_eq!(areas, json!(expected), "{start} {end}");
    }
    let wide = [r#""P100""#, "4194304", "4198401"];
    let refused = bench.error("LineNumbers", "mapToSource", &wide);
    assert_eq!(refused, (15, "null".to_owned()));
}

#[test]
fn functions_by_name() {
    let mut bench = Bench::new(Some(Replay::AtOnce));
    let id = r#""@SP100.400100""#;
    for command in ["find", "findByName"] {
        for arguments in [
            &[r#""P100""#, "0", r#""compute""#][..],
            &[r#""P100.100""#, r#""compute""#],
        ] {
            assert_eq!(bench.result("Symbols", command, arguments), [id]);
        }
        for (process, name) in [("P100", "nobody"), ("P100", "inner"), ("P200", "compute")] {
            let (process, name) = (format!("\"{process}\""), format!("\"{name}\""));
            let error = bench.error("Symbols", command, &[&process, "0", &name]);
            assert_eq!(error, (22, "null".to_owned()));
        }
    }
}

/// A frame of this kind of kernel code at 0x520, in a function that begins at 0x500.
fn kernel_frame(number: usize, kind: ModuleKind, name: &str) -> Vec<Definition> {
    let text = |more| StringId::from_index(100 + 2 * number + more);
    let module = ModuleId::from_index(1 + number);
    let function = FunctionId::from_index(2 + number);
    let frame = FrameId::from_index(1 + number);
    let line = Line { function, line: 33 };
    vec![
        Definition::String(text(0), format!("[{kind:?}]").into()),
        Definition::String(text(1), name.into()),
        Definition::Module(
            module,
            Module {
                kind,
                path: text(0),
                build_id: None,
                address_bias: 0,
            },
        ),
        Definition::Function(
            function,
            Function {
                name: text(1),
                linkage_name: None,
                module: Some(module),
                file: Some(text(1)),
                line: 0,
                start: Some(0x500),
                size: Some(0x40),
            },
        ),
        Definition::Frame(
            frame,
            Frame {
                kind: FrameKind::Kernel,
                module: Some(module),
                address: 0x520,
            },
        ),
        Definition::Symbol(frame, Symbol::Lines([line].into())),
    ]
}

#[test]
fn functions_of_the_kernel() {
    for replay in [None, Some(Replay::AtOnce)] {
        let mut bench = Bench::new(replay);
        let kinds = [
            (ModuleKind::Kernel, "do_syscall_64"),
            (ModuleKind::KernelModule, "btrfs_sync"),
        ];
        let mut definitions = Vec::new();
        for (number, (kind, name)) in kinds.into_iter().enumerate() {
            definitions.extend(kernel_frame(number, kind, name));
        }
        bench.state.world.define(0, definitions);
        let process = bench.state.world.find("P200").unwrap();
        for (number, (kind, name)) in kinds.into_iter().enumerate() {
            let frame = FrameId::from_index(1 + number);
            let address = bench.state.world.address_of(process, frame);
            let (start, size) = match kind {
                ModuleKind::Kernel => (0xffff_ffff_8100_0500, 0x40),
                _ => (address - 0x20, 0x40),
            };
            let (from, to) = (address.to_string(), (address + 1).to_string());
            let id = bench.result("Symbols", "findByAddr", &[r#""P200.200""#, &from]);
            let symbol = bench.one("Symbols", "getContext", &[&id[0]]);
            assert_eq!(symbol["Name"], name);
            assert_eq!(
                (&symbol["Address"], &symbol["Size"]),
                (&json!(start), &json!(size))
            );
            assert_eq!(symbol["OwnerID"], "P200");
            let areas = bench.one("LineNumbers", "mapToSource", &[r#""P200""#, &from, &to]);
            assert_eq!(
                (&areas[0]["SLine"], &areas[0]["SAddr"]),
                (&json!(33), &json!(address))
            );
            assert_eq!(
                (&areas[0]["File"], &areas[0]["Dir"]),
                (&json!(name), &json!("."))
            );
        }
    }
}
