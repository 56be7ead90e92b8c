# A formula for a Homebrew tap. A release fills in `url` and `sha256`: the source archive that
# `make release` builds, and its checksum. docs/start/install.md says how to try it. It has no
# service, because none of Homebrew's may take as long to end as lmx does: `lmx service` has.
class Lmx < Formula
  include Language::Python::Virtualenv

  desc "Server for language models on Apple Silicon, one process for each model"
  url "@URL@"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on arch: :arm64
  depends_on macos: :sonoma
  depends_on "python@3.13"

  # The lists are whole, and name every version: nothing else is resolved or installed, and nothing
  # is taken from other formulae, which change with their own upgrades.
  def install
    virtualenv_create(libexec, "python3.13", system_site_packages: false, without_pip: false)
    system libexec/"bin/python", "-m", "pip", "install", "--no-deps",
           "--constraint", "constraints.txt", "--requirement", "deploy/requirements.txt", buildpath
    bin.install_symlink libexec/"bin/lmx"
    generate_completions_from_executable(bin/"lmx", "completion", shells: [:bash, :zsh, :fish])
  end

  test do
    ENV["LMX_HOME"] = testpath/"lmx"
    assert_match version.to_s, shell_output("#{bin}/lmx --version")
    assert_match "ok", shell_output("#{bin}/lmx config check")
  end
end
