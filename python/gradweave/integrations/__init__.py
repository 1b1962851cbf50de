"""Frameworks that wrap models themselves: Accelerate, the Trainer of transformers, Lightning and Fabric. docs/frameworks.md.

Each module is imported by name, since what it serves may not be installed: `import gradweave.integrations.accelerate`.
"""
