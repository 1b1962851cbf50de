import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "device"), str(ROOT / "tests" / "runtime"), str(ROOT / "python")]
