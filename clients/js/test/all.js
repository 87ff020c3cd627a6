// All tests in one process, which starts one PGlite.

import "./search.test.js";
import "./arguments.test.js";
import "./values.test.js";
import "./langchain.test.js";
import "./ai.test.js";
import "./page.test.js";
