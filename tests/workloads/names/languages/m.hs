-- A module M@ whose work burns CPU time: @ is a or b. Steps -> a number.
module M@ (work) where

import Data.Bits (shiftR, xor)
import Data.Word (Word64)

work :: Word64 -> Word64 -> Word64
work steps = go 1
  where
    go i number
      | i > steps = number
      | otherwise = go (i + 1) ((number * 31 + i) `xor` (number `shiftR` 7))
{-# NOINLINE work #-}
