from setuptools import setup

setup(name="basket", version="1.0", py_modules=["basket"])
