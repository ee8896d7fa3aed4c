require("fs").writeFileSync("/tmp/required", "");
