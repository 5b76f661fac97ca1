-- Calls Ma's and Mb's work 300 times, with steps of 1 to 3. Output: a number.
import Data.Word (Word64)
import qualified Ma
import qualified Mb

turn :: Int -> Word64 -> Word64
turn 0 number = number
turn left number = turn (left - 1) (Mb.work 3000000 (Ma.work 1000000 number))

main :: IO ()
main = print (turn 300 1)
