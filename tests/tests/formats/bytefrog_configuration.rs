//! Configurations of Bytefrog as the original HQ writes them, and as others could.
//!
//! The bytes behind those of the class are what OpenJDK 17 wrote of the class with seven fields, with
//! lists of many classes; and what OpenJDK read back of what is encoded here.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use profiler_wire::bytefrog::{
    BYTEFROG_CLASS, CODE_PULSE_CLASS, Configuration, ConfigurationError,
};
use proptest::prelude::*;

/// Header, and the class.
const CLASS: &str = "aced00057372003d636f6d2e7365636465632e6279746566726f672e636f6d6d6f6e2e636f6e6669672e\
    52756e74696d654167656e74436f6e66696775726174696f6e5631bf53efb7761d26c202000749001262\
    75666665724d656d6f7279427564676574490011686561727462656174496e74657276616c49000e6e75\
    6d4461746153656e6465727349000f71756575655265747279436f756e7442000572756e49644c000a65\
    78636c7573696f6e737400104c6a6176612f7574696c2f4c6973743b4c000a696e636c7573696f6e7371\
    007e00017870";

/// Numbers as the original HQ has them by default, and two empty lists.
const EMPTY: &str = "00006400000003e8000000010000000500737200136a6176612e7574696c2e41727261794c6973747881\
    d21d99c7619d03000149000473697a65787000000000770400000000787371007e000300000000770400\
    00000078";

/// Run 200, two patterns and one with unusual characters.
const PATTERNS: &str = "00006400000003e80000000100000005c8737200136a6176612e7574696c2e41727261794c6973747881\
    d21d99c7619d03000149000473697a657870000000027704000000027400076a6176612f2e2a74000673\
    756e2f2e2a787371007e000300000001770400000001740013636f6d2f61c080e282aceda0bdedb8802f\
    2e2a78";

/// What is in a list, by its class.
const LISTS: &[(&str, &[&str], &[&str], &str)] = &[
    ("null lists", &[], &[], "7070"),
    (
        "null element",
        &["a", "b"],
        &[],
        "737200136a6176612e7574696c2e41727261794c6973747881d21d99c7619d03000149000473697a6578\
        7000000003770400000003740001617074000162787371007e00030000000077040000000078",
    ),
    (
        "shared",
        &["same", "same"],
        &["same"],
        "737200136a6176612e7574696c2e41727261794c6973747881d21d99c7619d03000149000473697a6578\
        700000000277040000000274000473616d6571007e0005787371007e0003000000017704000000017100\
        7e000578",
    ),
    (
        "same list",
        &["x"],
        &["x"],
        "737200136a6176612e7574696c2e41727261794c6973747881d21d99c7619d03000149000473697a6578\
        7000000001770400000001740001787871007e0004",
    ),
    (
        "arrays as list",
        &["a", "b"],
        &["c"],
        "7372001a6a6176612e7574696c2e4172726179732441727261794c697374d9a43cbecd8806d20200015b\
        0001617400135b4c6a6176612f6c616e672f4f626a6563743b7870757200135b4c6a6176612e6c616e67\
        2e537472696e673badd256e7e91d7b4702000078700000000274000161740001627371007e0003757100\
        7e00060000000174000163",
    ),
    (
        "empty and singleton",
        &[],
        &["a"],
        "7372001f6a6176612e7574696c2e436f6c6c656374696f6e7324456d7074794c6973747ab817b43ca79e\
        de0200007870737200236a6176612e7574696c2e436f6c6c656374696f6e732453696e676c65746f6e4c\
        6973742aef29103ca79b970200014c0007656c656d656e747400124c6a6176612f6c616e672f4f626a65\
        63743b787074000161",
    ),
    (
        "linked",
        &["a", "b"],
        &["c"],
        "737200146a6176612e7574696c2e4c696e6b65644c6973740c29535d4a60882203000078707704000000\
        027400016174000162787371007e00037704000000017400016378",
    ),
    (
        "unmodifiable",
        &["a", "b"],
        &["c"],
        "737200266a6176612e7574696c2e436f6c6c656374696f6e7324556e6d6f6469666961626c654c697374\
        fc0f2531b5ec8e100200014c00046c69737471007e00017872002c6a6176612e7574696c2e436f6c6c65\
        6374696f6e7324556e6d6f6469666961626c65436f6c6c656374696f6e19420080cb5ef71e0200014c00\
        01637400164c6a6176612f7574696c2f436f6c6c656374696f6e3b7870737200136a6176612e7574696c\
        2e41727261794c6973747881d21d99c7619d03000149000473697a657870000000027704000000027400\
        0161740001627871007e0008737200266a6176612e7574696c2e436f6c6c656374696f6e732453796e63\
        68726f6e697a65644c6973749463efe38344107c0200014c00046c69737471007e00017872002c6a6176\
        612e7574696c2e436f6c6c656374696f6e732453796e6368726f6e697a6564436f6c6c656374696f6e2a\
        61f84d099c99b50300024c00016371007e00054c00056d757465787400124c6a6176612f6c616e672f4f\
        626a6563743b78707371007e000700000001770400000001740001637871007e000e7871007e000f",
    ),
    (
        "unmodifiable of linked",
        &["a", "b"],
        &["c"],
        "737200266a6176612e7574696c2e436f6c6c656374696f6e7324556e6d6f6469666961626c654c697374\
        fc0f2531b5ec8e100200014c00046c69737471007e00017872002c6a6176612e7574696c2e436f6c6c65\
        6374696f6e7324556e6d6f6469666961626c65436f6c6c656374696f6e19420080cb5ef71e0200014c00\
        01637400164c6a6176612f7574696c2f436f6c6c656374696f6e3b7870737200146a6176612e7574696c\
        2e4c696e6b65644c6973740c29535d4a608822030000787077040000000274000161740001627871007e\
        00087372002d6a6176612e7574696c2e436f6c6c656374696f6e7324436865636b656452616e646f6d41\
        63636573734c69737416bc0e55a2d7f2f1020000787200216a6176612e7574696c2e436f6c6c65637469\
        6f6e7324436865636b65644c69737400e7ce7692c45f7c0200014c00046c69737471007e000178720027\
        6a6176612e7574696c2e436f6c6c656374696f6e7324436865636b6564436f6c6c656374696f6e15e96d\
        fd18e6cc6f0200034c00016371007e00054c0004747970657400114c6a6176612f6c616e672f436c6173\
        733b5b00167a65726f4c656e677468456c656d656e7441727261797400135b4c6a6176612f6c616e672f\
        4f626a6563743b7870737200136a6176612e7574696c2e41727261794c6973747881d21d99c7619d0300\
        0149000473697a657870000000017704000000017400016378767200106a6176612e6c616e672e537472\
        696e67a0f0a4387a3bb34202000078707071007e0012",
    ),
    (
        "list of",
        &["a", "b"],
        &["c", "d", "e"],
        "737200116a6176612e7574696c2e436f6c6c536572578eabb63a1ba81103000149000374616778700000\
        00017704000000027400016174000162787371007e000300000001770400000003740001637400016474\
        00016578",
    ),
    (
        "vector",
        &["a", "b"],
        &["c"],
        "737200106a6176612e7574696c2e566563746f72d9977d5b803baf010300034900116361706163697479\
        496e6372656d656e7449000c656c656d656e74436f756e745b000b656c656d656e74446174617400135b\
        4c6a6176612f6c616e672f4f626a6563743b78700000000000000002757200135b4c6a6176612e6c616e\
        672e4f626a6563743b90ce589f1073296c020000787000000002740001617400016278737200296a6176\
        612e7574696c2e636f6e63757272656e742e436f70794f6e577269746541727261794c697374785d9fd5\
        46ab90c303000078707704000000017400016378",
    ),
    (
        "n copies",
        &["a"],
        &["c"],
        "737200206a6176612e7574696c2e436f6c6c656374696f6e7324436f706965734c69737426033c45b170\
        03f80200024900016e4c0007656c656d656e747400124c6a6176612f6c616e672f4f626a6563743b7870\
        0000000374000161737200136a6176612e7574696c2e41727261794c6973747881d21d99c7619d030001\
        49000473697a657870000000017704000000017400016378",
    ),
];

/// Lists of what is no text, by what it is.
const OTHERS: &[(&str, &str)] = &[
    (
        "not strings",
        "737200136a6176612e7574696c2e41727261794c6973747881d21d99c7619d03000149000473697a6578\
        7000000001770400000001737200116a6176612e6c616e672e496e746567657212e2a0a4f78187380200\
        0149000576616c7565787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b0200007870\
        00000005787371007e00030000000077040000000078",
    ),
    (
        "enums",
        "737200136a6176612e7574696c2e41727261794c6973747881d21d99c7619d03000149000473697a6578\
        70000000017704000000017e72001d6a6176612e7574696c2e636f6e63757272656e742e54696d65556e\
        697400000000000000001200007872000e6a6176612e6c616e672e456e756d0000000000000000120000\
        787074000444415953787371007e00030000000077040000000078",
    ),
    (
        "nested",
        "737200136a6176612e7574696c2e41727261794c6973747881d21d99c7619d03000149000473697a6578\
        70000000017704000000017371007e0003000000017704000000017400016178787371007e0003000000\
        0077040000000078",
    ),
];

/// The numbers of [`LISTS`] and [`OTHERS`], run 1.
const NUMBERS: &str = "00006400000003e8000000010000000501";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().map(|c| c.to_digit(16).unwrap() as u8).collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn sent(rest: &str) -> Vec<u8> {
    bytes(&format!("{CLASS}{rest}"))
}

fn patterns() -> Configuration {
    Configuration {
        run: 200,
        exclusions: vec!["java/.*".to_owned(), "sun/.*".to_owned()],
        inclusions: vec!["com/a\0€\u{1f600}/.*".to_owned()],
        ..Configuration::default()
    }
}

#[test]
fn is_encoded_as_the_original_does() {
    assert_eq!(Configuration::default().encode(), sent(EMPTY));
    assert_eq!(patterns().encode(), sent(PATTERNS));
    let (short, long) = (BYTEFROG_CLASS.len(), CODE_PULSE_CLASS.len());
    let mut other = sent(EMPTY);
    other.splice(
        6..8 + short,
        [&[0, long as u8], CODE_PULSE_CLASS.as_bytes()].concat(),
    );
    assert_eq!(Configuration::default().encode_as(CODE_PULSE_CLASS), other);
    assert_eq!(Configuration::decode(&other), Ok(Configuration::default()));
}

#[test]
fn what_the_original_sends_is_decoded() {
    assert_eq!(
        Configuration::decode(&sent(EMPTY)),
        Ok(Configuration::default())
    );
    assert_eq!(Configuration::decode(&sent(PATTERNS)), Ok(patterns()));
}

#[test]
fn lists_of_many_classes_are_read() {
    for &(name, exclusions, inclusions, rest) in LISTS {
        let read = Configuration::decode(&sent(&format!("{NUMBERS}{rest}"))).unwrap();
        assert_eq!(read.run, 1, "{name}");
        assert_eq!(read.exclusions, exclusions, "{name}");
        assert_eq!(read.inclusions, inclusions, "{name}");
    }
}

#[test]
fn lists_of_other_things_are_refused() {
    for &(name, rest) in OTHERS {
        let read = Configuration::decode(&sent(&format!("{NUMBERS}{rest}")));
        assert_eq!(read, Err(ConfigurationError::Field("exclusions")), "{name}");
    }
}

/// A class, its fields by type and name, and the values of an object of it.
fn object(class: &str, fields: &[(&str, &str)], values: &[u8]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat();
    let mut out = [b"\xac\xed\0\x05\x73\x72", &*text(class), b"12345678\x02"].concat();
    out.extend((fields.len() as u16).to_be_bytes());
    for (kind, name) in fields {
        out.push(kind.as_bytes()[0]);
        out.extend(text(name));
        if kind.len() > 1 {
            out.push(0x74);
            out.extend(text(kind));
        }
    }
    [&out, b"\x78\x70".as_slice(), values].concat()
}

#[test]
fn fields_go_by_their_names() {
    let fields = [
        ("D", "of_a_later_version"),
        ("J", "bufferMemoryBudget"),
        ("Ljava/lang/String;", "comment"),
        ("S", "runId"),
        ("Lmy/List;", "inclusions"),
        ("[I", "numbers"),
        ("B", "heartbeatInterval"),
    ];
    let values = [
        &[0; 8][..],
        &5_000_u64.to_be_bytes(),
        b"\x74\0\x02hi",
        &255_u16.to_be_bytes(),
        b"\x70",
        b"\x75\x72\0\x02[I12345678\x02\0\0\x78\x70\0\0\0\x02\0\0\0\x07\0\0\0\x07",
        &[0xff],
    ]
    .concat();
    let bytes = object("RuntimeAgentConfigurationV1", &fields, &values);
    let expected = Configuration {
        buffer_memory_budget: 5_000,
        run: 255,
        heartbeat_interval_ms: -1,
        ..Configuration::default()
    };
    assert_eq!(Configuration::decode(&bytes), Ok(expected));
}

#[test]
fn what_is_no_configuration_is_an_error() {
    use ConfigurationError::{Class, Cut, Field, Syntax, TooLarge};
    const NAME: &str = "a.RuntimeAgentConfigurationV1";
    let list = |list: &[u8]| object(NAME, &[("Ljava/util/List;", "inclusions")], list);
    let number = |kind, value: &[u8]| object(NAME, &[(kind, "numDataSenders")], value);
    let cases = [
        (b"".to_vec(), Cut),
        (b"\xac\xed\0\x04\x70".to_vec(), Syntax { at: 0 }),
        (
            b"\xac\xed\0\x05\x70".to_vec(),
            Class("not an object".into()),
        ),
        (b"\xac\xed\0\x05\x79".to_vec(), Syntax { at: 4 }),
        (
            object("a.RuntimeAgentConfigurationV2\n", &[], b""),
            Class("a.RuntimeAgentConfigurationV2\\n".into()),
        ),
        (number("J", &[1; 8]), Field("numDataSenders")),
        (number("F", &[0; 4]), Field("numDataSenders")),
        (number("I", &[0; 3]), Cut),
        (number("Q", &[0; 3]), Syntax { at: 67 }),
        (object(NAME, &[("S", "runId")], &[1, 0]), Field("runId")),
        // A text, a constant of an enum, a text that is none, a handle that is not given yet.
        (list(b"\x74\0\x01a"), Field("inclusions")),
        (
            list(b"\x7e\x72\0\x01E12345678\x12\0\0\x78\x70\x74\0\x01A"),
            Field("inclusions"),
        ),
        (
            list(b"\x73\x72\0\x01L12345678\x03\0\0\x78\x70\x74\0\x01\xff\x78"),
            Field("inclusions"),
        ),
        (list(b"\x71\0\x7e\0\x09"), Syntax { at: 83 }),
        (list(b"\x71\0\0\0\x01"), Syntax { at: 83 }),
        (
            list(&b"\x73\x72\0\x01L12345678\x03\0\0\x78\x70".repeat(40)),
            TooLarge,
        ),
    ];
    for (bytes, error) in cases {
        assert_eq!(Configuration::decode(&bytes), Err(error), "{bytes:x?}");
    }
    assert_eq!(Configuration::decode(&vec![0; 5 << 20]), Err(TooLarge));
}

/// Few bytes that claim, or mean, much.
#[test]
fn work_and_memory_are_bounded() {
    let list = |list: &[u8]| {
        let fields = [("Ljava/util/List;", "inclusions")];
        Configuration::decode(&object("RuntimeAgentConfigurationV1", &fields, list))
    };
    // An array of four thousand million texts.
    let array = b"\x75\x72\0\x13[Ljava.lang.String;12345678\x02\0\0\x78\x70\xff\xff\xff\xff";
    assert_eq!(list(array), Err(ConfigurationError::Cut));
    assert_eq!(
        list(&b"\x7c\xff\xff\xff\xff\xff\xff\xff\xff"[..]),
        Err(ConfigurationError::Cut)
    );
    // One long text, referred to a thousand times.
    let text = [
        b"\x73\x72\0\x01L12345678\x03\0\0\x78\x70\x74\xff\xff",
        &[b'a'; 65535][..],
    ]
    .concat();
    let references = b"\x71\0\x7e\0\x05".repeat(1000);
    let all = [&text, &references, &b"\x78"[..]].concat();
    assert_eq!(list(&all), Err(ConfigurationError::TooLarge));
    // More values than anybody needs.
    let nulls = [&array[..array.len() - 4], &[0, 4, 0, 0], &[0x70; 1 << 18]].concat();
    assert_eq!(list(&nulls), Err(ConfigurationError::TooLarge));
    // A list that is its own field, and one that is its own element.
    let cycle =
        b"\x73\x72\0\x01L12345678\x03\0\x01L\0\x01l\x71\0\x7e\0\x01\x78\x70\x71\0\x7e\0\x04\x78";
    assert_eq!(list(cycle).unwrap().inclusions, [""; 0]);
    let own = b"\x73\x72\0\x01L12345678\x03\0\0\x78\x70\x71\0\x7e\0\x04\x78";
    assert_eq!(list(own), Err(ConfigurationError::Field("inclusions")));
    // A class that is its own superclass.
    let class = b"\x73\x72\0\x01L12345678\x03\0\0\x78\x71\0\x7e\0\x03";
    assert!(matches!(
        list(class),
        Err(ConfigurationError::Syntax { .. })
    ));
}

#[test]
fn cut_anywhere_it_is_an_error() {
    for rest in [EMPTY, PATTERNS] {
        let whole = sent(rest);
        for len in 0..whole.len() {
            let read = Configuration::decode(&whole[..len]);
            assert_eq!(read, Err(ConfigurationError::Cut), "{len}");
        }
        // What is behind is of no interest.
        let more = [&whole, b"more".as_slice()].concat();
        assert!(Configuration::decode(&more).is_ok());
    }
}

proptest! {
    #[test]
    fn is_decoded_as_it_was(
        numbers in any::<[i32; 4]>(),
        run: u8,
        mut exclusions in prop::collection::vec(".{0,20}|[\0é\u{1f600}]{1,4}", 0..6),
        inclusions in prop::collection::vec(any::<String>(), 0..6),
        long in 0_usize..70_000,
    ) {
        if long > 60_000 {
            exclusions.push("é".repeat(long));
        }
        let [buffer_memory_budget, heartbeat_interval_ms, data_senders, queue_retry_count] = numbers;
        let configuration = Configuration {
            buffer_memory_budget,
            heartbeat_interval_ms,
            data_senders,
            queue_retry_count,
            run,
            exclusions,
            inclusions,
        };
        prop_assert_eq!(Configuration::decode(&configuration.encode()), Ok(configuration));
    }
}
