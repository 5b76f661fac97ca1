-- Calls two functions that are local to main 100 times, which take one and three parts of the CPU time. Output: a number.
import Control.Monad (forM_)
import Data.Bits (shiftR, xor)
import Data.IORef (modifyIORef', newIORef, readIORef)
import Data.Word (Word64)

main :: IO ()
main = do
  sum <- newIORef (1 :: Word64)
  bits <- fmap (+ 6) (readIORef sum)
  let one n = forM_ [1 .. n] $ \i -> modifyIORef' sum (\x -> (x * 31 + i) `xor` (x `shiftR` fromIntegral bits))
      {-# NOINLINE one #-}
      three n = forM_ [1 .. n] $ \i -> modifyIORef' sum (\x -> (x * 33 + i) `xor` (x `shiftR` fromIntegral bits))
      {-# NOINLINE three #-}
  forM_ [1 .. 100 :: Int] $ \_ -> one 1000000 >> three 3000000
  readIORef sum >>= print
