//! Scratch.
use super::InstructionKind;
use super::place::Costs;
#[allow(missing_docs)]
#[derive(Clone, Debug)]
pub struct CostTable;
#[allow(missing_docs)]
impl CostTable {
    pub fn load(_: &std::path::Path) -> Option<CostTable> {
        Some(CostTable)
    }
    pub fn save(&self, _: &std::path::Path) -> std::io::Result<()> {
        Ok(())
    }
    pub fn return_ns(&self) -> u32 {
        300
    }
    pub fn entry_ns(&self, kind: InstructionKind) -> u32 {
        if kind == InstructionKind::Stepped {
            9500
        } else {
            550
        }
    }
}
impl Costs for CostTable {
    fn entry_ns(&self, kind: InstructionKind) -> u32 {
        self.entry_ns(kind)
    }
    fn return_ns(&self) -> u32 {
        300
    }
}
