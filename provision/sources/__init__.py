"""The one reader of project files: for `lock`, `build`, `bundle`, `plan` and the linter.

In: a directory or a text. Out: values with their places. Nothing of a project is run. How the data
flows:

    a requirement, an index   --packages--> a `RequestedPackage`, an `IndexSource`, a `Position`
    a requirements file       --requirements-> a `RequirementLine` for each line
    a package of conda        --conda-----> a `CondaSpec`
    a pyproject.toml          --pyproject_file-> a `PyprojectFile`: lists, extras, groups, indexes
    a dependency of Poetry    --poetry----> a `PoetryDependency`, and its requirement
    YAML                      --yaml------> a `YamlNode`, with positions

    requirements.txt, pyproject.toml, environment.yml, pixi.toml, uv.lock, pylock.toml, setup.py ...
        --one reader a format--> a `Declaration`: packages, constraints, python, cuda, hashes,
                                 each `Declared` at its line; in words what was not taken
    a directory or a file --find--> a `Project`: the file that is named, or the most authoritative

`files` reads the disk within the project's bounds; `together` joins the declarations of files that
include each other. The linter judges the values of the upper half, which choose nothing;
`provision/build/project/request.py` makes a `Project` a request.
"""
