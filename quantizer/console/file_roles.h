// file_roles.h: all files that a command reads and writes, so that none of them is lost to another one.
//
// A command registers its inputs, those it finds by itself too, and its outputs, and calls check() before any work.
// Files are compared, not names: by device and inode after links, and by folder and name where there is no file yet.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

// Roles are words of messages: "the --tokenizer" of an input, "--save-hessians" of an output. Empty paths stand for
// options that were not given.
class FileRoles {
 public:
  void input(const std::string& role, const std::string& path);
  // A checkpoint or artifact, the config given for it, and the config.json that lies beside it, whether or not it is
  // the one in use. What a folder holds are inputs of their own.
  void model(const std::string& path, const std::string& config_path = "");
  void output(const std::string& role, const std::string& path);
  // A folder that must not exist yet, or be empty.
  void output_folder(const std::string& role, const std::string& path);
  // The folder of resumable results, which need not exist. Files there whose names `is_own` knows are replaced and
  // removed by the run.
  void work_folder(const std::string& path, std::function<bool(std::string_view name)> is_own);

  // UsageError when an output would replace an input or another output, or the work folder would take a file; then the
  // error that writing an output would end with (require_writable(), require_writable_folder()).
  void check() const;

 private:
  struct File {
    std::string role, path;
    bool is_folder = false;  // of an output
  };
  void check_work_folder(const File& file) const;

  std::vector<File> inputs_, outputs_;
  std::string work_folder_;
  std::function<bool(std::string_view)> is_own_;
};

}  // namespace thimble
